"""Training of a few steps in fresh processes, and the record of these steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hooks import Hook
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.engines.device import find_device
from orchestrator.errors import RunError, UsageError
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.data.iterable import IterableData
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import Limits, RunContext
from orchestrator.loop.world import World
from orchestrator.replay.digests import digest_end
from orchestrator.replay.rank_processes import train_in_processes, without_loggers
from orchestrator.replay.recording_hooks import MAX_EPOCHS, CheckpointSaver, TrainingRecorder
from orchestrator.replay.training_record import TrainingRecord
from orchestrator.storage import Storage

_EPOCH_STEPS = 4
"""Steps of each epoch, which is cut short: few batches tell as much as all, in a fraction of the
time."""
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
        recorder = TrainingRecorder(resolved.task, hooks)
        saver = CheckpointSaver()
        own_hooks = {"verify_recorder": recorder, "verify_saver": saver}
        loop = self._make_loop(world, resolved, {**hooks, **own_hooks})
        if self.checkpoint:
            loop.restore(self.checkpoint)

        record = recorder.record
        record.is_iterable = isinstance(loop.training.data.phases["train"], IterableData)
        _train(loop, record)
        record.checkpoints = saver.checkpoints
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


def _train(loop: Loop, record: TrainingRecord) -> None:
    """Train the first epochs, and record the reports and the end."""
    reports = loop.run()
    for report in reports:
        record.metrics.setdefault(loop.state.iteration, {}).update(report.metrics)
        record.stopped = report.stopped
        if loop.state.epoch >= MAX_EPOCHS:
            break
    record.end = digest_end(loop.state)
    reports.close()


def _with_loader_workers(experiment: Experiment, loader_workers: int) -> Experiment:
    loader = experiment.loader.model_copy(update={"num_workers": loader_workers})
    return experiment.model_copy(update={"loader": loader})
