"""This rank's share of the order of an epoch's samples, and the seeds of its batches."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Sampler

from orchestrator.errors import TaskError
from orchestrator.randomness import seed_host
from orchestrator.units import format_count, number_epoch

Order = Callable[[int], list[int]]
"""Function from an epoch to the indices of its samples, the same on all ranks and each time."""


def default_order(length: int, seed: int, *, is_shuffled: bool) -> Order:
    """Return the order of torch's DistributedSampler."""

    def order(epoch: int) -> list[int]:
        if not is_shuffled:
            return list(range(length))
        generator = torch.Generator().manual_seed(seed + epoch)
        indices: list[int] = torch.randperm(length, generator=generator).tolist()
        return indices

    return order


class ShardedSampler(Sampler[int]):
    """Sampler of this rank's share of `length` samples, from any position in an epoch.

    With `even`, shares are those of torch's DistributedSampler: a few samples are repeated to give
    all ranks the same number. `offset` counts the samples of this epoch that all ranks have
    consumed. Shares are interleaved, so the consumed samples are a prefix of the epoch's order, and
    any number of ranks can continue the epoch.
    """

    def __init__(
        self, order: Order, length: int, rank: int, world_size: int, *, even: bool
    ) -> None:
        self.order = order
        self.length = length
        self.rank = rank
        self.world_size = world_size
        self.even = even
        self.epoch = 0
        self.offset = 0
        self.current_epoch = 0
        """Number of the current epoch, even if all epochs have the same order."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; keeps the offset."""
        self.epoch = epoch

    def begin(self, epoch: int, offset: int) -> None:
        """Begin an epoch after `offset` samples."""
        self.current_epoch = epoch
        self.offset = offset

    def __iter__(self) -> Iterator[int]:
        order = self.order(self.epoch)
        if len(order) != self.length:
            number = number_epoch(self.epoch)
            samples = format_count(len(order), "sample")
            raise TaskError(
                f"the sampler returns {samples} in epoch {number}, but {self.length:,} in the first"
            )
        rest = order[self.offset :]
        if self.even and rest:
            missing = -len(rest) % self.world_size
            rest += (order * (missing // len(order) + 1))[:missing]
        return iter(rest[self.rank :: self.world_size])

    def __len__(self) -> int:
        rest = max(0, self.length - self.offset)
        if not self.even:
            rest -= self.rank
        return math.ceil(rest / self.world_size)


class SeededBatches(BatchSampler):
    """Sampler of this rank's batches, each with its own seed, for a loader with processes.

    The process that fetches a batch seeds all generators. The seed depends on the experiment's
    seed, the epoch, and the batch's position in the epoch's order. So the random numbers do not
    depend on the process, nor on a resume.
    """

    def __init__(
        self, sampler: ShardedSampler, batch_size: int, drop_last: bool, seed: int
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._sharded_sampler = sampler
        self._seed = seed

    def __iter__(self) -> Iterator[list[int]]:
        sampler = self._sharded_sampler
        for number, batch in enumerate(super().__iter__()):
            position = sampler.offset + number * self.batch_size * sampler.world_size + sampler.rank
            entropy = np.random.SeedSequence([self._seed, sampler.current_epoch, position])
            yield _Batch(batch, int(entropy.generate_state(1)[0]))


class _Batch(list[int]):
    """Indices of a batch; unpickled in a loader process, they seed it and become a plain list."""

    def __init__(self, indices: list[int], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __reduce__(self) -> tuple[Callable[..., list[int]], tuple[Any, ...]]:
        return _seed_and_return, (list(self), self.seed)


def _seed_and_return(indices: list[int], seed: int) -> list[int]:
    seed_host(seed)
    return indices
