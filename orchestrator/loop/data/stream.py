"""Streams: iterable datasets, and loaders that keep their own place. Worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from orchestrator.config.checks.data import length_of
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import CheckpointError, ConfigError, Problem, RunError
from orchestrator.loop.data.share import Share, refuse_unclear
from orchestrator.loop.world import World
from orchestrator.randomness import (
    random_state,
    restore_random_state,
    storable_random_state,
    with_own_generators,
)
from orchestrator.task import Task

_END: Any = object()
_NOT_FETCHED: Any = object()


class Stream:
    """A phase's iterable dataset or loader.

    Training iterates over it in passes. If the length of a pass is known, and there is no `epoch_steps`, an epoch is a
    pass. Otherwise passes follow each other without regard to epochs. A rank whose pass ends before the epoch begins
    the next pass, or all ranks end the run there (`loader.on_exhausted`).
    """

    by_index = False
    size: int | None = None

    def __init__(
        self,
        task: Task,
        given: Any,
        phase: str,
        experiment: Experiment,
        world: World,
        generator: torch.Generator,
        anew: Callable[[], Any],
    ) -> None:
        self._task, self._phase, self._experiment, self._world = task, phase, experiment, world
        self._generator, self._anew = generator, anew
        self._trains = phase == "train"
        self.runs_dry = self._trains and experiment.loader.on_exhausted == "stop"
        options = experiment.loader
        self._batch_size = experiment.batch_size if self._trains else options.eval_batch_size or experiment.batch_size
        self._drop_last = self._trains and options.drop_last
        self._share: Share | None = None
        self.loader: Any = given
        if not is_loader(given):
            self._check_dataset(given)
            self._share = Share(given, world.rank, world.world_size, experiment.seed)
            self.loader = self._loader(self._share, generator, options.num_workers)
        if self._trains and not _has_place(self.loader):
            message = (
                f"its loader ({type(self.loader).__name__}) has no state_dict, so that a resumed run could not go on"
                " with it"
            )
            raise ConfigError(
                [Problem("task", message, suggestion="give the dataset, or torchdata's StatefulDataLoader")]
            )
        self._pass_length = self._agreed(self._own_length())
        self._is_whole = self._own_length() == self._pass_length
        self._by_pass = self._pass_length is not None and experiment.epoch_steps is None
        self._length = self._epoch_length() if self._trains else self._pass_length or 0
        self._epoch, self._passes = 0, 0
        self._batches: Iterator[Any] | None = None
        self._pass: Iterator[Any] = iter(())
        self._restored: dict[str, Any] | None = None
        self._next = _NOT_FETCHED
        self._ahead: dict[str, Any] | None = None
        """The place before the batch that was fetched ahead of its phase, and the generators of that moment."""
        self.is_over = False
        self._samples: list[int] | None = None
        """Samples of this rank's pass when this attempt began it, by process of the loader."""
        self._given = 0
        """Number of batches of these that were given."""

    def _check_dataset(self, dataset: Any) -> None:
        name, loader = f"the {self._phase} dataset ({type(dataset).__name__})", self._experiment.loader
        if not isinstance(dataset, IterableDataset) and iter(dataset) is dataset:
            message = (
                f"{name} is an iterator, which can be gone through once; give an object whose __iter__ begins anew"
            )
            raise ConfigError([Problem("task", message)])
        if self._world.world_size > 1 or loader.num_workers:
            refuse_unclear(dataset, self._phase)

    def _loader(
        self, share: Share, generator: torch.Generator, num_workers: int = 0, batch_size: int | None = None
    ) -> Any:
        pin = self._experiment.loader.pin_memory
        pinned = self._world.device.type == "cuda" if pin is None else pin
        options: dict[str, Any] = {"batch_size": batch_size or self._batch_size, "drop_last": self._drop_last}
        options |= {
            "generator": generator,
            "pin_memory": pinned,
            **({"num_workers": num_workers} if num_workers else {}),
        }
        return self._task.loader(share, None, self._phase, options)

    # How long an epoch is

    def _agreed(self, own: int | None) -> int | None:
        """Return the largest number of batches of a rank, or the smallest if training stops there."""
        lengths = self._world.gather(own) if self._trains else [own]
        known = [length for length in lengths if length is not None]
        if len(known) < len(lengths):
            return None
        return min(known) if self.runs_dry else max(known)

    def _own_length(self) -> int | None:
        return length_of(self.loader) if self._share is None else self._count_batches(self._shards())

    def _shards(self) -> list[int] | None:
        """Return the samples of a pass on this rank, by process of its loader; None if unknown."""
        whole = length_of(self._share.dataset) if self._share else None
        if self._share is None or whole is None:
            return None
        if self._share.shares_itself:
            return [whole]
        workers, world = self._experiment.loader.num_workers or 1, self._world
        shards = [world.rank + world.world_size * worker for worker in range(workers)]
        return [max(0, -(-(whole - shard) // (world.world_size * workers))) for shard in shards]

    def _count_batches(self, samples: list[int] | None) -> int | None:
        """Return the number of batches, which each process makes of its own samples."""
        size = self._batch_size
        if samples is None:
            return None
        return sum(count // size if self._drop_last else -(-count // size) for count in samples)

    def _remaining_in_pass(self) -> list[int] | None:
        """Return the samples left in this pass, by process. Processes take turns."""
        if self._samples is None:
            return None
        turns, more = divmod(self._given, len(self._samples))
        size = self._batch_size
        return [max(0, left - size * (turns + (worker < more))) for worker, left in enumerate(self._samples)]

    def batches_left(self, epoch: int) -> int | None:
        state = self._restored
        if not (state and self._by_pass and self._share and state["epoch"] == epoch and state["loader"] is not None):
            return None
        return self._agreed(self._count_batches(state["left"]) if state["pass"] == epoch else 0)

    def _epoch_length(self) -> int:
        experiment = self._experiment
        if experiment.epoch_steps is not None:
            return experiment.epoch_steps * experiment.micro_batches
        if self._pass_length is not None:
            if self._pass_length == 0:
                raise ConfigError(
                    [
                        Problem(
                            "batch_size",
                            f"is {experiment.batch_size}, and the train stream fills no batch of it on a rank",
                        )
                    ]
                )
            return self._pass_length
        if experiment.steps is None:
            message = (
                f"is {experiment.epochs}, and the train data is a stream without a length, so that nothing says when an"
                " epoch is over: write epoch_steps beside it, or steps in its place, or give the dataset a __len__"
            )
            raise ConfigError([Problem("epochs", message)])
        return experiment.steps * experiment.micro_batches

    def length(self, offset: int = 0) -> int:
        return self._length

    # Training

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        if self._batches is not None and not self._by_pass:
            return self._batches
        state, self._restored = self._restored, None
        if self._batches is not None:
            self._end_pass()
        elif state and self._share is None and state["loader"] is not None and self._is_new_pass(state, epoch):
            # The order of the next pass may depend on what a loader keeps of the last one.
            self._passes = state["pass"]
            self._pass = self._start_pass(state["loader"])
            self._end_pass()
        if state is None or self._is_new_pass(state, epoch):
            state = {"pass": epoch if self._by_pass else state["pass"] + 1 if state else 0, "loader": None}
        self._epoch, self._passes = epoch, state["pass"]
        self._pass = self._start_pass(state["loader"])
        self._samples = state.get("left", self._samples)
        if not self.runs_dry:
            self._batches = self._all_passes(gave=state["loader"] is not None)
            return self._batches
        if "random" in state:
            self._fetch_as_before(state)
        self._batches = self._iterate()
        return self._batches

    def _is_new_pass(self, state: Mapping[str, Any], epoch: int) -> bool:
        """Return whether training begins a new pass after the place that `state` describes."""
        return state["is_over"] or (self._by_pass and state["epoch"] != epoch)

    def _end_pass(self) -> None:
        """Exhaust a pass after its last batch, as a `for` loop does, with the training's generators unchanged."""
        if self._is_whole and self._passes == self._epoch:
            before = random_state()
            next(self._pass, _END)
            restore_random_state(before)

    def _all_passes(self, gave: bool) -> Iterator[Any]:
        """Yield the rest of a pass and all that follow; raises RunError for a pass without a batch."""
        while True:
            for batch in self._pass:
                gave = True
                self._given += 1
                yield batch
            if not gave:
                again = (
                    f" as it begins again (pass {self._passes + 1}): let its __iter__ begin anew"
                    if self._passes
                    else ": give it at least one for each rank"
                )
                raise RunError(f"rank {self._world.rank} has no batch of the train stream{again}")
            self._passes += 1
            self._pass, gave = self._start_pass(), False

    def _start_pass(self, place: Any = None) -> Iterator[Any]:
        """Return a pass, or the rest of it from a place on. Reading up to it draws no numbers from the training."""
        self._samples, self._given = self._shards(), 0
        if self._share is not None:
            self._share.passes = self._passes
        self._generator.manual_seed(self._experiment.seed * 1_000_003 + self._passes * 1_009 + self._world.rank)
        if place is None:
            return self._checked(iter(self.loader))
        before = random_state()
        self.loader.load_state_dict(place)
        batches = iter(self.loader)
        restore_random_state(before)
        return self._checked(batches)

    def _checked(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; raises RunError if one cannot be loaded."""
        while True:
            try:
                batch = next(batches, _END)
            except Exception as error:  # the user's own code, which may raise anything
                raise RunError(
                    f"the {self._phase} stream fails on rank {self._world.rank}: {type(error).__name__}: {error}"
                ) from error
            if batch is _END:
                return
            yield batch

    def ready(self) -> bool:
        if self._next is _NOT_FETCHED:
            self._next = next(self._pass, _END)
        self.is_over = bool(self._world.maximum([float(self._next is _END)])[0])
        return not self.is_over

    def has_more(self) -> bool:
        if not self.runs_dry or self._by_pass:
            return True
        self._ahead = {**self._place(self.loader.state_dict()), "random": storable_random_state()}
        return self.ready()

    def _fetch_as_before(self, state: dict[str, Any]) -> None:
        """Fetch the batch that was fetched ahead when the checkpoint was made, with the generators of that moment."""
        before, self._ahead = random_state(), state
        restore_random_state(state["random"])
        self._next = next(self._pass, _END)
        restore_random_state(before)

    def _iterate(self) -> Iterator[Any]:
        while True:
            batch, self._next, self._ahead = self._next, _NOT_FETCHED, None
            self._given += 1
            yield batch

    # Where it stands

    def state_dict(self) -> dict[str, Any] | None:
        if self._batches is None:
            return self._restored or self._place(None)
        if self.is_over:
            return self._place(None)
        return self._ahead or self._place(self.loader.state_dict())

    def _place(self, place: Any) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "pass": self._passes,
            "processes": self._experiment.loader.num_workers,
            "loader": place,
            "left": self._remaining_in_pass(),
            "is_over": self.is_over,
        }

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        if world_size != self._world.world_size:
            raise CheckpointError(
                "the train data is a stream, of which each rank keeps its own place, and the checkpoint is of"
                f" {world_size} rank{'s' if world_size > 1 else ''}, not {self._world.world_size}; go on with --workers"
                f" {world_size}, or begin another run"
            )
        if state is None:
            raise CheckpointError(
                "the train data is a stream, and the checkpoint has no place in one: it was made with map-style data"
            )
        processes = self._experiment.loader.num_workers
        if state["loader"] is not None and state["processes"] != processes:
            raise CheckpointError(
                f"the train stream's place is that of {state['processes']} processes for each rank, and"
                f" loader.num_workers is {processes}; go on with loader.num_workers={state['processes']}"
            )
        self._restored, self._epoch, self._passes = state, state["epoch"], state["pass"]
        self.is_over = self.runs_dry and state["is_over"]

    # Evaluation, and beside the training

    def once(self) -> tuple[Iterator[Any], Iterable[object]]:
        batches = _LookAhead(self._start_pass())
        return batches, batches.places()

    def close(self) -> None:
        self._batches = self.loader = None
        self._pass = iter(())

    def first_sample(self) -> Any:
        given = self._anew()
        alone = Share(given, 0, 1, self._experiment.seed)
        loader = given if self._share is None else self._loader(alone, torch.Generator(), batch_size=1)
        return next(with_own_generators(loader, self._experiment.seed))

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        """Yield batches of new data of the task, as the present stream must keep its place; of training one epoch."""
        given, world, seed = self._anew(), self._world, self._experiment.seed
        loader = (
            given
            if self._share is None
            else self._loader(Share(given, world.rank, world.world_size, seed), torch.Generator())
        )
        return islice(with_own_generators(loader, seed), self._length if self._trains else None)


class _LookAhead(Iterator[Any]):
    """An iterator that knows whether there is another batch."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches, self._next = batches, next(batches, _END)

    def __next__(self) -> Any:
        batch, self._next = self._next, next(self._batches, _END)
        return batch

    def places(self) -> Iterator[object]:
        """Yield an item for each batch, as long as there is one."""
        while self._next is not _END:
            yield self._next


def is_loader(given: Any) -> bool:
    """Return whether this yields batches, and not samples as a dataset does."""
    return isinstance(given, DataLoader) or (not isinstance(given, IterableDataset) and _has_place(given))


def _has_place(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
