"""Streams: iterable datasets, and loaders that keep their own place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from itertools import islice
from pickle import UnpicklingError
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from orchestrator.config.checks.data import length_of
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import CheckpointError, ConfigError, Problem, RunError
from orchestrator.loop.data.share import Share, refuse_unclear
from orchestrator.loop.state.randomness import random_state, restore_random_state, with_own_generators
from orchestrator.loop.world import World
from orchestrator.task import Task

_END: Any = object()


class Stream:
    """A phase's iterable dataset or loader. Worker process.

    Training goes through it in passes. Where a pass's length is known, and no other is asked for, an epoch is a pass;
    else epochs are stretches of passes that follow each other. A rank whose pass is over before the epoch begins the
    next one, or the run ends there on all ranks (`loader.when_dry`).
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
        self.runs_dry = self._trains and experiment.loader.when_dry == "stop"
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
        self._pass_length = self._agreed_length()
        self._by_pass = self._pass_length is not None and experiment.epoch_steps is None
        self._length = self._epoch_length() if self._trains else self._pass_length or 0
        self._epoch, self._passes = 0, 0
        self._batches: Iterator[Any] | None = None
        self._pass: Iterator[Any] = iter(())
        self._restored: dict[str, Any] | None = None
        self._next = _END
        self._is_checked = False

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

    def _agreed_length(self) -> int | None:
        """A pass's batches: those of the rank that has most, or in training that is to stop where one has none left,
        least."""
        lengths = self._world.gather(self._own_length()) if self._trains else [self._own_length()]
        known = [length for length in lengths if length is not None]
        if len(known) < len(lengths):
            return None
        return min(known) if self.runs_dry else max(known)

    def _own_length(self) -> int | None:
        if self._share is None or self._share.shares_itself:
            return length_of(self.loader) if self._share is None else self._in_batches([length_of(self._share.dataset)])
        whole, workers = length_of(self._share.dataset), self._experiment.loader.num_workers or 1
        world = self._world
        shards = [world.rank + world.world_size * worker for worker in range(workers)]
        return self._in_batches(
            [None if whole is None else max(0, -(-(whole - shard) // (world.world_size * workers))) for shard in shards]
        )

    def _in_batches(self, samples: list[int | None]) -> int | None:
        """The batches of some processes, each of which makes its own."""
        size = self._batch_size
        known = [one // size if self._drop_last else -(-one // size) for one in samples if one is not None]
        return sum(known) if len(known) == len(samples) else None

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
        if state is None or (self._by_pass and state["epoch"] != epoch):
            state = {"pass": epoch if self._by_pass else 0, "loader": None}
        self._epoch, self._passes = epoch, state["pass"]
        if self.runs_dry:
            self._pass = self._one_pass(state["loader"])
            self._batches = self._taken()
        else:
            self._batches = self._all_passes(self._one_pass(state["loader"]), gave=state["loader"] is not None)
        return self._batches

    def _all_passes(self, batches: Iterator[Any], gave: bool) -> Iterator[Any]:
        """The rest of a pass, of which some may have been given, and those that follow; raises RunError for one that
        has no batch."""
        while True:
            for batch in batches:
                gave = True
                yield batch
            if not gave:
                again = (
                    f" as it begins again (pass {self._passes + 1}): let its __iter__ begin anew"
                    if self._passes
                    else ": give it at least one for each rank"
                )
                raise RunError(f"rank {self._world.rank} has no batch of the train stream{again}")
            self._passes += 1
            batches, gave = self._one_pass(), False

    def _one_pass(self, place: Any = None) -> Iterator[Any]:
        """A pass, from a place on where one is given: what leads there is read at once, and draws no numbers from the
        training."""
        if self._share is not None:
            self._share.passes = self._passes
        self._generator.manual_seed(self._experiment.seed * 1_000_003 + self._passes * 1_009 + self._world.rank)
        if place is None:
            return self._told(iter(self.loader))
        before = random_state()
        self.loader.load_state_dict(place)
        batches = iter(self.loader)
        restore_random_state(before)
        return self._told(batches)

    def _told(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; raises RunError where the data cannot give one."""
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
        self._next = next(self._pass, _END)
        return not self._world.maximum([float(self._next is _END)])[0]

    def _taken(self) -> Iterator[Any]:
        while True:
            yield self._next

    # Where it stands

    def state_dict(self) -> dict[str, Any] | None:
        if self._batches is None:
            return self._restored or self._described(None)
        state = self._described(self.loader.state_dict())
        if not self._is_checked:
            self._refuse_objects(state)
            self._is_checked = True
        return state

    def _described(self, place: Any) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "pass": self._passes,
            "processes": self._experiment.loader.num_workers,
            "loader": place,
        }

    def _refuse_objects(self, state: dict[str, Any]) -> None:
        written = BytesIO()
        torch.save(state, written)
        written.seek(0)
        try:
            torch.load(written, weights_only=True)
        except UnpicklingError as error:
            message = (
                "the place of the train stream holds what is no plain data, and could not be read back:"
                f" {str(error).splitlines()[0]}"
            )
            raise RunError(
                f"{message}. Let state_dict give numbers, text, tensors, and lists and mappings of these"
            ) from error

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

    # Evaluation, and beside the training

    def once(self) -> tuple[Iterator[Any], Iterable[object]]:
        batches = _LookAhead(self._one_pass())
        return batches, batches.places()

    def close(self) -> None:
        self._batches = self.loader = None

    def first_sample(self) -> Any:
        given = self._anew()
        alone = Share(given, 0, 1, self._experiment.seed)
        loader = given if self._share is None else self._loader(alone, torch.Generator(), batch_size=1)
        return next(with_own_generators(loader, self._experiment.seed))

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        """Of training as many as an epoch has, as the stream gives them; its data is asked for anew, as what is under
        way has a place."""
        given, world, seed = self._anew(), self._world, self._experiment.seed
        loader = (
            given
            if self._share is None
            else self._loader(Share(given, world.rank, world.world_size, seed), torch.Generator())
        )
        return islice(with_own_generators(loader, seed), self._length if self._trains else None)


class _LookAhead(Iterator[Any]):
    """Batches of which it is known whether there is another."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches, self._next = batches, next(batches, _END)

    def __next__(self) -> Any:
        batch, self._next = self._next, next(self._batches, _END)
        return batch

    def places(self) -> Iterator[object]:
        """Something for each batch, as long as there is one."""
        while self._next is not _END:
            yield self._next


def is_loader(given: Any) -> bool:
    """Whether this gives batches, as against a dataset, which gives samples."""
    return isinstance(given, DataLoader) or (not isinstance(given, IterableDataset) and _has_place(given))


def _has_place(one: Any) -> bool:
    return hasattr(one, "state_dict") and hasattr(one, "load_state_dict")
