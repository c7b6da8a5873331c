"""The order of an epoch's samples, and which of them are this rank's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Sampler

from orchestrator.errors import RunError
from orchestrator.randomness import seed_host

Order = Callable[[int], list[int]]
"""Epoch to the places of its samples in the dataset, the same on all ranks and each time."""


def in_order(length: int) -> Order:
    """Each sample once, as the dataset has them."""
    return lambda epoch: list(range(length))


def shuffled(length: int, seed: int) -> Order:
    """Each sample once, in the order of torch's DistributedSampler."""

    def order(epoch: int) -> list[int]:
        places: list[int] = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        return places

    return order


class ShardedSampler(Sampler[int]):
    """This rank's share of an order of `length` samples, which can begin in the middle of an epoch. Worker process.

    With `even` the shares are those of torch's DistributedSampler: a few samples are repeated so that all ranks have
    the same number, as training needs; without it the order is shared out as it is. `offset` counts the samples all
    ranks together have consumed of this epoch: because shares are interleaved these are a prefix of the epoch's order,
    so an epoch may be resumed with another number of ranks.
    """

    def __init__(self, order: Order, length: int, rank: int, world_size: int, *, even: bool) -> None:
        self.order, self.length = order, length
        self.rank, self.world_size, self.even = rank, world_size, even
        self.epoch = 0
        self.offset = 0
        self.begun = 0
        """The epoch under way, also where none other than the first one's order is asked for."""

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch; does not move the offset."""
        self.epoch = epoch

    def begin(self, epoch: int, offset: int) -> None:
        """What is gone through next is the rest of an epoch."""
        self.begun, self.offset = epoch, offset

    def __iter__(self) -> Iterator[int]:
        order = self.order(self.epoch)
        if len(order) != self.length:
            message = (
                f"the sampler gives {len(order)} samples in epoch {self.epoch}, and {self.length} in the first; give as"
                " many in each"
            )
            raise RunError(message)
        rest = order[self.offset :]
        if self.even and rest:
            missing = -len(rest) % self.world_size
            rest += (order * (missing // len(order) + 1))[:missing]
        return iter(rest[self.rank :: self.world_size])

    def __len__(self) -> int:
        rest = max(0, self.length - self.offset)
        return -(-(rest if self.even else rest - self.rank) // self.world_size)


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
