"""The loader of an iterable dataset on a rank, its length, and batches outside the training
order."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.data import get_length
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.iterable_length import (
    agree_on_length,
    choose_epoch_length,
    count_batches,
)
from orchestrator.loop.data.iterable_shard import Share, check_sharding_declared, has_state
from orchestrator.loop.data.phase_data import PhaseData
from orchestrator.loop.world import World
from orchestrator.randomness import with_own_generators
from orchestrator.task import Task


class IterableLoader(PhaseData):
    """A phase's iterable dataset with a loader of this rank's share, or the task's own loader."""

    def __init__(
        self,
        task: Task,
        data: Any,
        phase: str,
        experiment: Experiment,
        world: World,
        generator: torch.Generator,
        build_again: Callable[[], Any],
    ) -> None:
        super().__init__(task, phase, experiment, world, generator)
        self._build_again = build_again
        self.stops_when_exhausted = self._is_training and experiment.loader.on_exhausted == "stop"
        self._share: Share | None = None
        self.loader: Any = data
        if not is_loader(data):
            self._check_dataset(data)
            self._share = Share(
                data, world.rank, world.world_size, experiment.seed, reseeds=self._is_training
            )
            self.loader = self._make_loader(self._share, generator, experiment.loader.num_workers)
        if self._is_training and not has_state(self.loader):
            raise ConfigError.at(
                "task",
                f"its train loader ({type(self.loader).__name__}) has no state_dict, so a run could not resume",
                suggestion="return the dataset, or torchdata's StatefulDataLoader",
            )

        self._own_length = self._count_batches()
        """This rank's batches in a pass; None if unknown."""
        pass_length = self._choose_pass_length()
        self._is_whole = self._own_length == pass_length
        self._is_epoch_one_pass = pass_length is not None and experiment.epoch_steps is None
        self._length = pass_length or 0
        if self._is_training:
            self._length = choose_epoch_length(experiment, pass_length)

    def _check_dataset(self, dataset: Any) -> None:
        if not isinstance(dataset, IterableDataset) and iter(dataset) is dataset:
            raise ConfigError.at(
                "task",
                f"the {self._phase} dataset ({type(dataset).__name__}) is an iterator, which ends after one pass;"
                " return an object whose __iter__ starts over",
            )
        if self._world.world_size > 1 or self._experiment.loader.num_workers:
            check_sharding_declared(dataset, self._phase)

    def _make_loader(
        self,
        share: Share,
        generator: torch.Generator,
        num_workers: int = 0,
        batch_size: int | None = None,
    ) -> Any:
        options: dict[str, Any] = {
            "batch_size": batch_size or self._batch_size,
            "drop_last": self._drop_last,
            "generator": generator,
            "pin_memory": self._pin_memory,
        }
        if num_workers:
            options["num_workers"] = num_workers
        return self._task.loader(share, None, self._phase, options)

    def _count_batches(self) -> int | None:
        """Return the number of this rank's batches in a pass; None if unknown."""
        if self._share is None:
            return get_length(self.loader)
        return count_batches(
            self._share,
            self._world,
            self._batch_size,
            self._experiment.loader.num_workers,
            drop_last=self._drop_last,
        )

    def _choose_pass_length(self) -> int | None:
        """Return the batches of a pass after which training goes on to the next one; None if
        unknown. Collective."""
        if not self._is_training:
            return self._own_length
        # Training stops when a rank has no batch left, or that rank begins its next pass.
        return agree_on_length(self._own_length, self._world, is_smallest=self.stops_when_exhausted)

    def length(self, offset: int = 0) -> int:
        return self._length

    def first_sample(self) -> Any:
        return next(self._load_again(0, 1, batch_size=1))

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        batches = self._load_again(self._world.rank, self._world.world_size)
        return islice(batches, self._length if self._is_training else None)

    def _load_again(
        self, rank: int, world_size: int, batch_size: int | None = None
    ) -> Iterator[Any]:
        """Yield the batches of the data, made again, because this one must keep its position."""
        loader = self._build_again()
        seed = self._experiment.seed
        if self._share is not None:
            share = Share(loader, rank, world_size, seed)
            loader = self._make_loader(share, torch.Generator(), batch_size=batch_size)
        return with_own_generators(loader, seed)


def is_loader(data: Any) -> bool:
    """Return whether an object yields batches, not samples as a dataset does."""
    if isinstance(data, DataLoader):
        return True
    return not isinstance(data, IterableDataset) and has_state(data)
