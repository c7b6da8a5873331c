"""Iterable datasets, and loaders that keep their own position. Runs in workers."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from hooks.loader_parts import find_parts_with_epoch
from orchestrator.errors import CheckpointError, ConfigError, RunError, TaskError
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
from orchestrator.randomness import random_state, restore_random_state, with_own_generators
from orchestrator.task import Task

logger = logging.getLogger("hookyard")

_END: Any = object()
_NOT_FETCHED: Any = object()


class IterableData(PhaseData):
    """A phase's iterable dataset or loader.

    Training iterates over it in passes. If the length of a pass is known and `epoch_steps` is not
    set, an epoch is a pass; otherwise epochs and passes are independent. If a rank's pass ends
    before the epoch, the rank begins the next pass, or all ranks end the run there
    (`loader.on_exhausted`).
    """

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
        pass_length = self._own_length
        if self._is_training:
            # Training stops when a rank has no batch left, or that rank begins its next pass.
            pass_length = agree_on_length(
                self._own_length, world, is_smallest=self.stops_when_exhausted
            )
        self._is_whole = self._own_length == pass_length
        self._is_epoch_one_pass = pass_length is not None and experiment.epoch_steps is None
        self._length = pass_length or 0
        if self._is_training:
            self._length = choose_epoch_length(experiment, pass_length)

        self._epoch = 0
        self._passes = 0
        self._batches: Iterator[Any] | None = None
        self._pass: Iterator[Any] = iter(())
        self._count: int | None = None
        """Batches of the current pass so far; None after a restore, because they are unknown."""
        self._has_warned = False
        self._restored: dict[str, Any] | None = None
        """Restored position, until training continues there."""
        self._next = _NOT_FETCHED
        self._position_ahead: dict[str, Any] | None = None
        """Position and random state before the batch that was fetched ahead of its phase."""
        self.is_exhausted = False

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

    def length(self, offset: int = 0) -> int:
        return self._length

    # Training

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        if self._batches is not None and not self._is_epoch_one_pass:
            return self._batches
        state = self._restored
        self._restored = None
        is_new_pass = state is None or self._is_new_pass(state, epoch)
        if self._batches is not None:
            self._end_pass()
        elif state and is_new_pass and self._share is None and state["loader"] is not None:
            # Finish the last pass first, because a loader may derive the order of the next pass
            # from it.
            self._passes = state["pass"]
            self._pass = self._start_pass(state["loader"])
            self._end_pass()
        if is_new_pass:
            following = state["pass"] + 1 if state else 0
            state = {"pass": epoch if self._is_epoch_one_pass else following, "loader": None}
        assert state is not None

        self._epoch = epoch
        self._passes = state["pass"]
        self._pass = self._start_pass(state["loader"])
        if self.stops_when_exhausted:
            if "random" in state:
                self._fetch_ahead_again(state)
            self._batches = self._iterate_ahead()
        else:
            self._batches = self._iterate_passes(has_batch=state["loader"] is not None)
        return self._batches

    def _is_new_pass(self, state: Mapping[str, Any], epoch: int) -> bool:
        """Return whether training begins a new pass after the position `state`."""
        return state["is_exhausted"] or (self._is_epoch_one_pass and state["epoch"] != epoch)

    def _end_pass(self) -> None:
        """Exhaust a pass after its last batch, as a `for` loop does.

        This does not change the training's random state.
        """
        if self._is_whole and self._passes == self._epoch:
            before = random_state()
            next(self._pass, _END)
            restore_random_state(before)

    def _iterate_passes(self, has_batch: bool) -> Iterator[Any]:
        """Yield the rest of a pass and all that follow; raises TaskError if a pass has no batch."""
        while True:
            for batch in self._pass:
                has_batch = True
                yield batch
            if not has_batch:
                raise TaskError(
                    f"the train dataset has no batch for rank {self._world.rank} in pass {self._passes + 1}; __iter__"
                    " must start over in each pass"
                )
            self._passes += 1
            self._pass = self._start_pass()
            has_batch = False

    def _start_pass(self, position: Any = None) -> Iterator[Any]:
        """Return a pass, or its rest from `position` on.

        Skipping to it does not change the training's random state.
        """
        if self._share is not None:
            self._share.passes = self._passes
        self._seed_generator(self._passes)
        self._count = 0 if position is None else None
        if position is None:
            return self._with_located_errors(iter(self.loader))
        before = random_state()
        self.loader.load_state_dict(position)
        batches = iter(self.loader)
        restore_random_state(before)
        return self._with_located_errors(batches)

    def _with_located_errors(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; raises RunError if one cannot be loaded."""
        while True:
            try:
                batch = next(batches, _END)
            except Exception as error:
                raise RunError(
                    f"the {self._phase} dataset fails on rank {self._world.rank}: {type(error).__name__}: {error}"
                ) from error
            if batch is _END:
                self._check_length(has_ended=True)
                if not self._is_training and self._own_length is not None:
                    self._length = self._count or 0
                return
            if self._count is not None:
                self._count += 1
                self._check_length(has_ended=False)
            yield batch

    def _check_length(self, *, has_ended: bool) -> None:
        """Warn once if a pass has fewer or more batches than the dataset's length says."""
        count = self._count
        length = self._own_length
        if count is None or length is None or self._has_warned:
            return
        is_longer = count > length
        is_shorter = has_ended and count < length
        if not is_longer and not is_shorter:
            return
        self._has_warned = True
        effect = "all of them count"
        if self._is_training and self._is_epoch_one_pass:
            effect = "an epoch repeats the first ones"
            if is_longer:
                effect = "an epoch leaves out the rest"
        logger.warning(
            "The %s dataset has %s batches on rank %d, and %d by its __len__: %s. Correct __len__%s",
            self._phase,
            f"more than {length}" if is_longer else count,
            self._world.rank,
            length,
            effect,
            ", or set epoch_steps" if self._is_training else "",
        )

    def fetch_ahead(self) -> bool:
        if not self.stops_when_exhausted:
            # Another pass follows, which `_iterate_passes` begins.
            return True
        if self._next is _NOT_FETCHED:
            self._next = next(self._pass, _END)
        (is_exhausted,) = self._world.maximum([float(self._next is _END)])
        self.is_exhausted = bool(is_exhausted)
        return not self.is_exhausted

    def has_more(self) -> bool:
        if not self.stops_when_exhausted or self._is_epoch_one_pass:
            return True
        self._position_ahead = self._make_position(self.loader.state_dict())
        self._position_ahead["random"] = random_state()
        return self.fetch_ahead()

    def _fetch_ahead_again(self, state: dict[str, Any]) -> None:
        """Fetch again the batch that was fetched ahead of the checkpoint.

        This uses the random state of that time.
        """
        self._position_ahead = state
        before = random_state()
        restore_random_state(state["random"])
        self._next = next(self._pass, _END)
        restore_random_state(before)

    def _iterate_ahead(self) -> Iterator[Any]:
        while True:
            batch = self._next
            self._next = _NOT_FETCHED
            self._position_ahead = None
            yield batch

    # Position

    def state_dict(self) -> dict[str, Any] | None:
        if self._batches is None:
            return self._restored or self._make_position(None)
        if self.is_exhausted:
            return self._make_position(None)
        return self._position_ahead or self._make_position(self.loader.state_dict())

    def _make_position(self, loader_state: Any) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "pass": self._passes,
            "processes": self._experiment.loader.num_workers,
            "loader": loader_state,
            "is_exhausted": self.is_exhausted,
        }

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        if world_size != self._world.world_size:
            raise CheckpointError(
                f"an iterable dataset continues only on as many ranks as before: {world_size}, "
                f"got {self._world.world_size}; resume with --workers {world_size}"
            )
        if state is None:
            raise CheckpointError(
                "the train data is iterable, but the checkpoint was made with map-style data and has no position in it"
            )
        processes = self._experiment.loader.num_workers
        if state["loader"] is not None and state["processes"] != processes:
            raise CheckpointError(
                f"an iterable dataset continues only with as many DataLoader workers as before: set"
                f" loader.num_workers={state['processes']}, got {processes}"
            )
        self._restored = state
        self._epoch = state["epoch"]
        self._passes = state["pass"]
        self.is_exhausted = self.stops_when_exhausted and state["is_exhausted"]

    # Evaluation, and batches outside the training order

    def evaluation_batches(self, number: int) -> tuple[Iterator[Any], Iterable[object]]:
        for part in find_parts_with_epoch(self.loader):
            part.set_epoch(number)
        self._passes = number
        batches = self._start_pass()
        # The batch fetched ahead tells whether there is another one.
        ahead = deque(islice(batches, 1))

        def take() -> Iterator[Any]:
            while ahead:
                batch = ahead.popleft()
                ahead.extend(islice(batches, 1))
                yield batch

        return take(), iter(lambda: len(ahead), 0)

    def close(self) -> None:
        if self._batches is not None and self._count == self._own_length:
            self._end_pass()
        self._batches = self.loader = None
        self._pass = iter(())

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
