"""The sources of a rank's batches of an iterable phase: a dataset that the ranks share, or the
task's own loader. Run in workers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch

from orchestrator.experiment.checks.datasets import get_length, is_loader
from orchestrator.experiment.checks.iterable_data import (
    check_dataset,
    check_loader_has_state,
    count_batches,
)
from orchestrator.loop.data.distributed_sampler import check_shard_of_loader
from orchestrator.loop.data.iterable_shard import IterableShard
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.randomness import with_own_generators

BuildAgain = Callable[[], Any]
"""Function that makes a phase's data again, because one that is read must keep its position."""


class IterableSource(ABC):
    """The loader of an iterable phase on this rank, which may have processes."""

    loader: Any
    loader_workers: int | None = None
    """DataLoader workers that the experiment gives the loader; None for the task's own loader."""
    needs_whole_passes = False
    """True if the order of a pass may depend on how far the one before was read."""

    @abstractmethod
    def count_batches(self) -> int | None:
        """Return the number of this rank's batches in a pass; None if unknown."""

    @abstractmethod
    def begin_pass(self, number: int) -> None:
        """Let the next iterator of the loader be that of a pass."""

    @abstractmethod
    def read_again(
        self, rank: int, world_size: int, batch_size: int | None = None
    ) -> Iterator[Any]:
        """Return the batches of one pass over the data, made again."""


class SharedDataset(IterableSource):
    """A dataset of which each rank reads a share, by a loader that is made here."""

    def __init__(self, context: PhaseContext, dataset: Any, build_again: BuildAgain) -> None:
        world = context.world
        loader_workers = context.experiment.loader.num_workers
        is_shared = world.world_size > 1 or loader_workers > 0
        check_dataset(dataset, context.phase, is_shared=is_shared)
        self._context = context
        self._build_again = build_again
        self._shard = IterableShard(
            dataset,
            world.rank,
            world.world_size,
            context.experiment.seed,
            reseeds=context.is_training,
        )
        self.loader_workers = loader_workers
        self.loader = self._make_loader(
            self._shard, context.generator, context.batch_size, loader_workers
        )

    def _make_loader(
        self, shard: IterableShard, generator: torch.Generator, batch_size: int, num_workers: int
    ) -> Any:
        context = self._context
        options: dict[str, Any] = {
            "batch_size": batch_size,
            "drop_last": context.drop_last,
            "generator": generator,
            "pin_memory": context.pin_memory,
        }
        if num_workers:
            options["num_workers"] = num_workers
        return context.task.loader(shard, None, context.phase, options)

    def count_batches(self) -> int | None:
        context = self._context
        return count_batches(
            self._shard.source,
            context.batch_size,
            rank=context.world.rank,
            world_size=context.world.world_size,
            num_workers=context.experiment.loader.num_workers,
            drop_last=context.drop_last,
        )

    def begin_pass(self, number: int) -> None:
        self._shard.passes = number

    def read_again(
        self, rank: int, world_size: int, batch_size: int | None = None
    ) -> Iterator[Any]:
        context = self._context
        shard = IterableShard(self._build_again(), rank, world_size, context.experiment.seed)
        loader = self._make_loader(
            shard, torch.Generator(), batch_size or context.batch_size, num_workers=0
        )
        return with_own_generators(loader, context.experiment.seed)


class TaskLoader(IterableSource):
    """A loader that the task returns, which makes the batches of this rank as it likes."""

    needs_whole_passes = True

    def __init__(self, context: PhaseContext, loader: Any, build_again: BuildAgain) -> None:
        check_shard_of_loader(context.task.data, context.phase, loader, context.world)
        self._seed = context.experiment.seed
        self._build_again = build_again
        self.loader = loader

    def count_batches(self) -> int | None:
        return get_length(self.loader)

    def begin_pass(self, number: int) -> None:
        """Do nothing: the loader counts its passes, if it does."""

    def read_again(
        self, rank: int, world_size: int, batch_size: int | None = None
    ) -> Iterator[Any]:
        return with_own_generators(self._build_again(), self._seed)


def make_source(context: PhaseContext, data: Any, build_again: BuildAgain) -> IterableSource:
    """Return the source of a phase's batches; raises ConfigError for data that cannot be read on
    this rank, or whose position cannot be saved."""
    kind = TaskLoader if is_loader(data) else SharedDataset
    source = kind(context, data, build_again)
    if context.is_training:
        check_loader_has_state(source.loader)
    return source
