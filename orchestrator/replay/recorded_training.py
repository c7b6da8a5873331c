"""Training of a few steps in fresh processes, and the record of these steps."""

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from hooks import Hook, Priority, State
from hooks.loop_services import get_checkpoint_name
from hooks.private_torch import tree_leaves
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.engines.device import find_device
from orchestrator.errors import RunError, UsageError
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.data.iterable import IterableData
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.saving.attributes import GENERATORS
from orchestrator.loop.world import World
from orchestrator.replay.digests import digest, digest_end, digest_state, list_data_values
from orchestrator.replay.rank_processes import train_in_processes, without_loggers
from orchestrator.storage import Storage

_EPOCH_STEPS = 4
"""Steps of each epoch, which is cut short."""
_EPOCHS = 3
_EVALUATED_BATCHES = 2


@dataclass
class TrainingRecord:
    """The samples, losses and states of a training in one process, by iteration. Picklable."""

    samples: dict[int, str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Metrics of each report."""
    state: dict[int, dict[str, str]] = field(default_factory=dict)
    """Values before an iteration, by path."""
    end: dict[str, str] = field(default_factory=dict)
    """Weights, buffers, optimizers and random states at the end."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    is_iterable: bool = False
    """Whether the training data is iterable, which continues only with as many DataLoader workers as
    before."""
    suspects: list[str] = field(default_factory=list)
    """Generators of the training data and of its modules."""


class _Recorder(Hook):
    """Recorder of what a loop does, which also saves checkpoints."""

    priority: ClassVar[Priority | int] = Priority.HIGHEST
    observes: ClassVar[bool] = True

    def __init__(self) -> None:
        self.record = TrainingRecord()
        self._loop: Loop | None = None
        self._save_at: tuple[int, ...] = ()

    def follow(self, loop: Loop, save_at: tuple[int, ...]) -> None:
        """Record this loop from now on, and save at these iterations."""
        self._loop = loop
        self._save_at = save_at

    def on_iteration_start(self, state: State) -> None:
        if state.phase == "train" and state.iteration in self._save_at:
            assert self._loop is not None
            self.record.state[state.iteration] = digest_state(self._loop)

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.record.samples[state.iteration + 1] = digest(tree_leaves(state.batch))

    def on_step(self, state: State) -> None:
        if state.phase != "train":
            return
        assert state.loss is not None
        self.record.losses[state.iteration] = state.loss.item()
        # At the end of a phase the loop saves after it.
        if state.iteration in self._save_at and state.phase_iteration < state.phase_length:
            state.request_checkpoint("verify")

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train" and state.iteration in self._save_at:
            state.request_checkpoint("verify")

    def on_saved(self, state: State, path: str) -> None:
        self.record.checkpoints[state.iteration] = get_checkpoint_name(path)
        assert state.checkpoints is not None
        state.checkpoints.retain("verify", [*self.record.checkpoints.values()])


@dataclass(frozen=True)
class RecordedTraining:
    """Training of a few steps by the ranks of an experiment. Picklable."""

    source: ExperimentSource
    folder: str
    loader_workers: int
    checkpoint: str | None = None

    def train(self, world: World) -> TrainingRecord:
        """Train one rank, and return its record."""
        recorder = _Recorder()
        loop = self._make_loop(world, recorder)
        length = _shorten(loop)
        recorder.follow(loop, _choose_saves(length, loop.experiment.micro_batches))
        if self.checkpoint:
            loop.restore(self.checkpoint)

        record = recorder.record
        record.is_iterable = isinstance(loop.training.data.train, IterableData)
        record.suspects = [
            path for path, value in list_data_values(loop) if isinstance(value, GENERATORS)
        ]
        reports = loop.run()
        for report in reports:
            record.metrics[loop.state.iteration] = dict(report.metrics)
            if loop.state.iteration >= _EPOCHS * length:
                break
        record.end = digest_end(loop)
        reports.close()
        return record

    def _make_loop(self, world: World, recorder: _Recorder) -> Loop:
        resolved = resolve(self.source)
        experiment = _extend(resolved.experiment, self.loader_workers)
        if world.world_size == 1:
            world = replace(world, device=find_device(experiment.workers))
        folder = Path(self.folder)
        context = RunContext(
            world=world,
            store=CheckpointStore(Storage(folder / "checkpoints"), is_master=world.is_master),
            saves=self.checkpoint is None,
            artifacts=folder,
        )
        return Loop(
            resolved.task,
            experiment,
            {**without_loggers(resolved.hooks), "verify": recorder},
            context,
            resumes=self.checkpoint is not None,
        )


def _shorten(loop: Loop) -> int:
    """Shorten the phases of a loop: few batches tell as much as all, in a fraction of the time.
    Return the iterations of an epoch."""
    epoch = loop.training.epoch
    length = min(_EPOCH_STEPS * loop.experiment.micro_batches, epoch.length)
    epoch.shorten(length)
    loop.runs[0].inference.shorten(_EVALUATED_BATCHES)
    return length


def _choose_saves(length: int, microbatches: int) -> tuple[int, ...]:
    """Return the iterations at which to save: in the middle of the second epoch, if there is a step
    to end there, and at its end."""
    steps = -(-length // microbatches)
    within_second = length + max(1, steps // 2) * microbatches
    end_of_second = 2 * length
    return (within_second, end_of_second) if within_second < end_of_second else (end_of_second,)


def train_ranks(
    source: ExperimentSource,
    ranks: int,
    threads: int,
    folder: str,
    processes: int,
    checkpoint: str | None = None,
) -> list[TrainingRecord]:
    """Train in fresh processes, and return the record of each rank. Raises UsageError if the
    training fails."""
    if checkpoint is None and Path(folder, "checkpoints").exists():
        folder = tempfile.mkdtemp(dir=folder)
    training = RecordedTraining(source, folder, processes, checkpoint)
    try:
        return train_in_processes(training.train, ranks, threads)
    except RunError as error:
        raise UsageError(f"cannot verify, because training fails: {error}") from None


def _extend(experiment: Experiment, loader_workers: int) -> Experiment:
    """Return the experiment with enough epochs or steps, so that training does not end."""
    if experiment.steps:
        length = {"steps": max(experiment.steps, (_EPOCHS + 1) * _EPOCH_STEPS)}
    else:
        length = {"epochs": max(experiment.epochs or 0, _EPOCHS + 1)}
    loader = experiment.loader.model_copy(update={"num_workers": loader_workers})
    return experiment.model_copy(update={**length, "loader": loader})
