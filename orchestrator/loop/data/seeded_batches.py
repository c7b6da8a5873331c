"""Batches whose random numbers are their own: the same in whichever process of a loader, and after a resume in the
middle of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from orchestrator.loop.data.sharding import ShardedSampler
from orchestrator.randomness import seed_host


class SeededBatches(BatchSampler):
    """This rank's batches, for a loader with processes: in the one that fetches a batch every generator begins at a
    number of its own, which seed, epoch and the batch's place among the samples of all ranks decide. Worker process."""

    def __init__(self, sampler: ShardedSampler, batch_size: int, drop_last: bool, seed: int) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._own, self._seed = sampler, seed

    def __iter__(self) -> Iterator[list[int]]:
        own = self._own
        for number, batch in enumerate(super().__iter__()):
            place = own.offset + number * self.batch_size * own.world_size + own.rank
            yield _Batch(batch, int(np.random.SeedSequence([self._seed, own.begun, place]).generate_state(1)[0]))


class _Batch(list[int]):
    """The indices of a batch. Where they arrive in another process, its generators begin at `seed`, and a plain list is
    left."""

    def __init__(self, indices: list[int], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __reduce__(self) -> tuple[Callable[..., list[int]], tuple[Any, ...]]:
        return _arrived, (list(self), self.seed)


def _arrived(indices: list[int], seed: int) -> list[int]:
    seed_host(seed)
    return indices
