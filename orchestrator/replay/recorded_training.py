"""Training of a few steps in fresh processes, and the record of what it did."""

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from hooks import Hook, Priority, State
from hooks.private_torch import tree_leaves
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.engines.in_process import find_device
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.errors import HookyardError, RunError, UsageError
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.data.iterable import IterableData
from orchestrator.loop.loop import Loop
from orchestrator.loop.state.attributes import GENERATORS
from orchestrator.loop.training_run import RunContext
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


@dataclass
class _Recorder(Hook):
    """Recorder of what training does, which also saves checkpoints."""

    loop: Any = None
    record: TrainingRecord = field(default_factory=TrainingRecord)
    save_at: tuple[int, ...] = ()
    """Iterations at which to save."""

    priority: ClassVar[Priority | int] = Priority.HIGHEST
    observes: ClassVar[bool] = True

    def on_iteration_start(self, state: State) -> None:
        if state.phase == "train" and state.iteration in self.save_at:
            self.record.state[state.iteration] = digest_state(self.loop)

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.record.samples[state.iteration + 1] = digest(tree_leaves(state.batch))

    def on_step(self, state: State) -> None:
        if state.phase != "train":
            return
        assert state.loss is not None
        self.record.losses[state.iteration] = state.loss.item()
        # At the end of a phase the loop saves after it.
        if state.iteration in self.save_at and state.phase_iteration < state.phase_length:
            state.request_checkpoint("verify")

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train" and state.iteration in self.save_at:
            state.request_checkpoint("verify")

    def on_saved(self, state: State, path: str) -> None:
        name = path.rpartition("/")[2]
        self.record.checkpoints[state.iteration] = name
        assert state.checkpoints is not None
        state.checkpoints.retain("verify", [*self.record.checkpoints.values()])


@dataclass(frozen=True)
class RecordedTraining:
    """Training of a few steps by the ranks of an experiment. Picklable."""

    source: ExperimentSource
    folder: str
    loader_workers: int
    checkpoint: str | None = None

    def train_rank(self, world: World) -> None:
        """Train one rank, and write its record to the folder. Raises RankFailed if user code
        fails."""
        try:
            record = self._train(world)
        except HookyardError:
            raise
        except Exception as error:  # from user code
            raise RankFailed.from_error(world.rank, world.world_size, error) from error
        _record_path(self.folder, world.rank).write_bytes(pickle.dumps(record))

    def _train(self, world: World) -> TrainingRecord:
        recorder = _Recorder()
        loop = self._make_loop(world, recorder)
        training = loop.training
        record = recorder.record
        record.is_iterable = isinstance(training.data.train, IterableData)
        epoch_iterations = self._shorten(loop, recorder)
        if self.checkpoint:
            loop.restore(self.checkpoint)
            loop.runs[0].saving.store = None  # the checkpoints stay as they are
        record.suspects = [
            path for path, value in list_data_values(loop) if isinstance(value, GENERATORS)
        ]

        reports = loop.run()
        for report in reports:
            record.metrics[loop.state.iteration] = dict(report.metrics)
            if loop.state.iteration >= _EPOCHS * epoch_iterations:
                break
        record.end = digest_end(loop)
        reports.close()
        return record

    def _make_loop(self, world: World, recorder: _Recorder) -> Loop:
        resolved = resolve(self.source)
        experiment = _extend(resolved.experiment, self.loader_workers)
        if world.world_size == 1:
            world = replace(world, device=find_device(experiment.workers))
        storage = Storage(Path(self.folder, "checkpoints"))
        store = CheckpointStore(storage, is_master=world.is_master)
        loop = Loop(
            resolved.task,
            experiment,
            {**without_loggers(resolved.hooks), "verify": recorder},
            RunContext(world=world, store=store, artifacts=Path(self.folder)),
            resumes=self.checkpoint is not None,
        )
        recorder.loop = loop
        return loop

    def _shorten(self, loop: Loop, recorder: _Recorder) -> int:
        """Shorten the phases of a loop, and choose where it saves; return the iterations of an
        epoch."""
        microbatches = loop.experiment.micro_batches
        epoch = loop.training.epoch
        steps = min(_EPOCH_STEPS, -(-epoch.length // microbatches))
        length = min(steps * microbatches, epoch.length)
        epoch.shorten(length)
        for phase in loop.training.data.phases.values():
            # Few batches tell as much as all, in a fraction of the time.
            few = partial(_list_few, phase.evaluation_batches)
            phase.evaluation_batches = few  # type: ignore[method-assign]

        within_second = length + max(1, steps // 2) * microbatches
        end_of_second = 2 * length
        recorder.save_at = (end_of_second,)
        if within_second < end_of_second:
            recorder.save_at = (within_second, end_of_second)
        return length


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
    for name in ("ranks", "failed"):
        Path(folder, name).unlink(missing_ok=True)
    training = RecordedTraining(source, folder, processes, checkpoint)
    try:
        train_in_processes(training.train_rank, ranks, folder, threads)
    except RunError as error:
        raise UsageError(f"cannot verify, because training fails: {error}") from None
    return [pickle.loads(_record_path(folder, rank).read_bytes()) for rank in range(ranks)]


def _record_path(folder: str, rank: int) -> Path:
    return Path(folder, f"trained-{rank}")


def _extend(experiment: Experiment, loader_workers: int) -> Experiment:
    """Return the experiment with enough epochs or steps, so that training does not end."""
    if experiment.steps:
        length = {"steps": max(experiment.steps, (_EPOCHS + 1) * _EPOCH_STEPS)}
    else:
        length = {"epochs": max(experiment.epochs or 0, _EPOCHS + 1)}
    loader = experiment.loader.model_copy(update={"num_workers": loader_workers})
    return experiment.model_copy(update={**length, "loader": loader})


def _list_few(evaluation_batches: Any, *arguments: Any) -> tuple[Iterator[Any], Iterable[object]]:
    """Return the first batches of an evaluation."""
    batches, places = evaluation_batches(*arguments)
    return batches, islice(places, _EVALUATED_BATCHES)
