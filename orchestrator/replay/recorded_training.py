"""Training of a few steps in fresh processes, and the record of these steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from hooks import Hook, Priority, State
from hooks.loop_services import get_checkpoint_name
from hooks.private_torch import tree_leaves
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.engines.device import find_device
from orchestrator.errors import RunError, UsageError
from orchestrator.experiment.optim.timeline import divide_up
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.data.iterable import IterableData
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import Limits, RunContext
from orchestrator.loop.world import World
from orchestrator.replay.digests import digest, digest_end, digest_state
from orchestrator.replay.rank_processes import train_in_processes, without_loggers
from orchestrator.replay.training_record import TrainingRecord
from orchestrator.storage import Storage
from orchestrator.task import Task

_EPOCH_STEPS = 4
"""Steps of each epoch, which is cut short: few batches tell as much as all, in a fraction of the
time."""
_EPOCHS = 3
"""Largest number of epochs. Schedules have the length of the whole run."""
_EVALUATED_BATCHES = 2


def train_ranks(
    source: ExperimentSource,
    *,
    ranks: int,
    threads: int,
    folder: Path,
    loader_workers: int,
    checkpoint: str | None = None,
) -> list[TrainingRecord]:
    """Train in fresh processes, and return the record of each rank.

    Args:
        source: The experiment.
        ranks: Number of processes.
        threads: Number of torch threads of each.
        folder: Folder of the checkpoints.
        loader_workers: Number of DataLoader workers, in place of the experiment's.
        checkpoint: Checkpoint in the folder to continue from, without saving others; None to train
            from the beginning, and save checkpoints.

    Raises:
        UsageError: If the training fails.
    """
    training = _ShortTraining(source, folder, loader_workers, checkpoint)
    try:
        return train_in_processes(training.train, ranks, threads)
    except RunError as error:
        raise UsageError(f"cannot verify, because training fails: {error}") from None


@dataclass(frozen=True)
class _ShortTraining:
    """The first epochs of an experiment, each of a few steps. Picklable."""

    source: ExperimentSource
    folder: Path
    loader_workers: int
    checkpoint: str | None

    def train(self, world: World) -> TrainingRecord:
        """Train one rank, and return its record."""
        resolved = resolve(self.source)
        hooks = without_loggers(resolved.hooks)
        recorder = _Recorder(resolved.task, hooks)
        saver = _Saver()
        loop = self._make_loop(
            world, resolved, {**hooks, "verify_recorder": recorder, "verify_saver": saver}
        )
        if self.checkpoint:
            loop.restore(self.checkpoint)

        record = recorder.record
        record.is_iterable = isinstance(loop.training.data.phases["train"], IterableData)
        record.checkpoints = saver.checkpoints
        reports = loop.run()
        for report in reports:
            record.metrics.setdefault(loop.state.iteration, {}).update(report.metrics)
            record.stopped = report.stopped
            if loop.state.epoch >= _EPOCHS:
                break
        record.end = digest_end(loop.state)
        reports.close()
        return record

    def _make_loop(
        self, world: World, resolved: ResolvedExperiment, hooks: Mapping[str, Hook]
    ) -> Loop:
        experiment = _with_loader_workers(resolved.experiment, self.loader_workers)
        if world.world_size == 1:
            world = replace(world, device=find_device(experiment.workers))
        context = RunContext(
            world=world,
            store=CheckpointStore(Storage(self.folder / "checkpoints"), is_master=world.is_master),
            saves=self.checkpoint is None,
            artifacts=self.folder,
            limits=Limits(
                epoch_iterations=_EPOCH_STEPS * experiment.micro_batches,
                evaluated_batches=_EVALUATED_BATCHES,
            ),
        )
        resumes = self.checkpoint is not None
        return Loop(resolved.task, experiment, hooks, context, resumes=resumes)


class _Recorder(Hook):
    """Records what a loop does."""

    priority: ClassVar[Priority | int] = Priority.HIGHEST
    observes: ClassVar[bool] = True

    def __init__(self, task: Task, hooks: Mapping[str, Hook]) -> None:
        self.record = TrainingRecord()
        self._task = task
        self._hooks = hooks

    def on_iteration_start(self, state: State) -> None:
        if state.phase == "train" and state.iteration in _list_saves(state):
            self.record.state[state.iteration] = digest_state(state, self._task, self._hooks)

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.record.samples[state.iteration + 1] = digest(tree_leaves(state.batch))

    def on_step(self, state: State) -> None:
        if state.phase == "train":
            assert state.loss is not None
            self.record.losses[state.iteration] = state.loss.item()


class _Saver(Hook):
    """Saves the checkpoints from which training is to continue."""

    observes: ClassVar[bool] = True

    def __init__(self) -> None:
        self.checkpoints: dict[int, str] = {}
        """Names of the checkpoints, by iteration."""

    def on_step(self, state: State) -> None:
        # At the end of a phase the loop saves after it.
        if state.phase_iteration < state.phase_length:
            self._save(state)

    def on_phase_end(self, state: State) -> None:
        self._save(state)

    def _save(self, state: State) -> None:
        if state.phase == "train" and state.iteration in _list_saves(state):
            state.request_checkpoint("verify")

    def on_saved(self, state: State, path: str) -> None:
        self.checkpoints[state.iteration] = get_checkpoint_name(path)
        assert state.checkpoints is not None
        state.checkpoints.retain("verify", [*self.checkpoints.values()])


def _list_saves(state: State) -> tuple[int, ...]:
    """Return the iterations at which to save, in a training phase: in the middle of an epoch, if
    there is a step to end there, and at its end. Another epoch follows, unless there is only
    one."""
    length = state.phase_length
    steps_per_epoch = divide_up(length, state.accumulate)
    epochs = state.max_epochs or divide_up(state.max_steps or 0, steps_per_epoch)
    begin = max(0, min(epochs, _EPOCHS) - 2) * length
    middle = begin + max(1, steps_per_epoch // 2) * state.accumulate
    end = begin + length
    if state.max_steps is not None:
        end = min(end, state.max_steps * state.accumulate)
    return (middle, end) if middle < end else (end,)


def _with_loader_workers(experiment: Experiment, loader_workers: int) -> Experiment:
    loader = experiment.loader.model_copy(update={"num_workers": loader_workers})
    return experiment.model_copy(update={"loader": loader})
