"""The data of all phases: train, val and test. Worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from hooks import Interval
from hooks.metrics.names import PHASES, phases_of
from orchestrator.config.checks.data import PHASES_OF_DATA, check_phases, is_indexed
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import ConfigError, Problem
from orchestrator.loop.data.indexed import Indexed
from orchestrator.loop.data.stream import Stream, is_loader
from orchestrator.loop.step.task_errors import check_type
from orchestrator.loop.step.transfer import to_device
from orchestrator.loop.world import World
from orchestrator.task import Task

DataOf = Callable[[Task, Experiment, World], Mapping[str, Any]]
"""Returns the data of a task for a rank."""


def data_from_task(task: Task, experiment: Experiment, world: World) -> Mapping[str, Any]:
    """Return the task's own data; raises RunError unless it is a mapping."""
    given: Mapping[str, Any] = check_type(task.data, task.data(), Mapping, PHASES_OF_DATA)
    return given


class PhaseData(Protocol):
    """A phase's data on this rank. Training iterates over it epoch by epoch, an evaluation once."""

    loader: Any
    """The loader in `state.loaders`."""
    by_index: bool
    """Whether a place in an epoch is a number of samples, from which any number of ranks can continue."""
    size: int | None
    """Samples of an epoch on all ranks; None if unknown."""
    runs_dry: bool
    """Whether training ends when a rank has no batch left, so that all ranks agree before each."""
    is_over: bool
    """Whether training has ended so."""

    def length(self, offset: int = 0) -> int:
        """Return this rank's batches in an epoch, without the first `offset` samples of all ranks.

        In training all ranks have the same number. In an evaluation 0 means unknown.
        """

    def batches_left(self, epoch: int) -> int | None:
        """Return the batches left in the epoch at a restored place, if it knows them; collective."""

    def begin(self, epoch: int, offset: int) -> Iterator[Any]:
        """Return the training batches of an epoch, without the first `offset` samples of all ranks."""

    def ready(self) -> bool:
        """Return whether every rank has another training batch; collective."""

    def has_more(self) -> bool:
        """Return whether every rank has a training batch after the phase that has just ended; collective."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return this rank's place, as plain data; None if the loop's counters know it."""

    def restore(self, state: dict[str, Any] | None, world_size: int) -> None:
        """Continue at a saved place; raises CheckpointError if that is impossible."""

    def once(self) -> tuple[Iterator[Any], Iterable[object]]:
        """Return the batches of an evaluation, and an iterable with an item for each of them."""

    def close(self) -> None:
        """Release the loader."""

    def first_sample(self) -> Any:
        """Return a batch of the first sample, the same on each rank and each time."""

    def fresh_batches(self, *, shuffled: bool) -> Iterator[Any]:
        """Yield this rank's batches once, the same each time, without effect on the training."""


class Data:
    """The data of all phases on this rank."""

    def __init__(self, task: Task, experiment: Experiment, world: World, data_of: DataOf = data_from_task) -> None:
        self._device = world.device
        datasets = dict(data_of(task, experiment, world))
        check_phases(task, datasets)
        _refuse_unread(task, experiment, datasets)
        generator = torch.Generator()

        def of(phase: str, given: Any) -> PhaseData:
            if is_indexed(given):
                return Indexed(task, given, phase, experiment, world, generator)
            return Stream(
                task,
                given,
                phase,
                experiment,
                world,
                generator,
                lambda: data_of(task, experiment, World(device=world.device))[phase],
            )

        self.phases: dict[str, PhaseData] = {
            phase: of(phase, datasets[phase]) for kind in PHASES for phase in phases_of(kind, datasets)
        }
        self.train = self.phases["train"]
        self.loaders = {phase: data.loader for phase, data in self.phases.items()}
        """Loaders by phase, for hooks."""

    def phase_names(self, kind: str) -> list[str]:
        """Return the phases of val, or of test, in the order in which they run."""
        return phases_of(kind, self.phases)

    def sizes(self) -> dict[str, int]:
        """Return the samples of each phase, if known."""
        return {phase: data.size for phase, data in self.phases.items() if data.size is not None}

    def close(self) -> None:
        """Release the loaders and their processes, which the garbage collector would end late and slowly."""
        self.loaders.clear()
        for data in self.phases.values():
            data.close()

    def first_sample(self, phase: str) -> Any:
        """Return a batch of the first sample of a phase, on the device, the same on each rank and each time."""
        return to_device(self.phases[phase].first_sample(), self._device)

    def fresh_batches(self, phase: str, *, shuffled: bool = False) -> Iterator[Any]:
        """Return this rank's batches of a phase once, on the device, the same each time.

        They have no effect on the training's order and random numbers.
        """
        return (to_device(batch, self._device) for batch in self.phases[phase].fresh_batches(shuffled=shuffled))


def _refuse_unread(task: Task, experiment: Experiment, datasets: dict[str, Any]) -> None:
    """Raise ConfigError for keys about data that the task does not have: evaluations, streams, the loop's loaders."""
    loader, train = experiment.loader, datasets["train"]
    if not is_indexed(train) and experiment.workers.min_count < experiment.workers.max_count:
        message = (
            f"is {experiment.workers.count}, and the train data is a stream, of which each rank keeps its own place;"
            " write one number"
        )
        raise ConfigError([Problem("workers.count", message)])
    streams_alone = {
        "epoch_steps": experiment.epoch_steps is not None,
        "loader.on_exhausted": loader.on_exhausted != "restart",
    }
    message = (
        f"has no effect: the train data ({type(train).__name__}) is map-style, an epoch of which is each of its samples"
    )
    _refuse(streams_alone if is_indexed(train) else {}, message)
    ours = {
        phase for phase, dataset in datasets.items() if not is_loader(dataset) or hasattr(dataset, "made_by_engine")
    }
    evaluates = bool(ours - {"train"})
    without_ours = {
        "batch_size": (
            "train" not in ours
            and (not evaluates or loader.eval_batch_size is not None)
            and experiment.batch_size != Experiment.model_fields["batch_size"].default
        ),
        "loader.num_workers": not ours and loader.num_workers != 0,
        "loader.pin_memory": not ours and loader.pin_memory is not None,
        "loader.drop_last": "train" not in ours and loader.drop_last,
        "loader.eval_batch_size": len(datasets) > 1 and not evaluates and loader.eval_batch_size is not None,
    }
    _refuse(without_ours, f"has no effect: {type(task).__name__}.data() gives loaders of its own; set it there")
    default = Experiment.model_fields["validate_every"].default
    unread = {
        "validate_every": not phases_of("val", datasets) and experiment.validate_every not in (default, Interval(0)),
        "loader.eval_batch_size": len(datasets) == 1 and experiment.loader.eval_batch_size is not None,
    }
    message = f"has no effect: {type(task).__name__}.data() gives {' and '.join(datasets)} alone"
    _refuse(unread, message)


def _refuse(unread: dict[str, bool], message: str) -> None:
    if any(unread.values()):
        raise ConfigError([Problem(path, message) for path, is_unread in unread.items() if is_unread])
