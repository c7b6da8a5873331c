"""A run in a worker: its state, plan, rows, checkpoints and progress."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from hooks.event_plan import Plan
from hooks.position import Stage
from orchestrator.disk.checkpoints.training_files import TrainingFiles
from orchestrator.errors import CheckpointError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.report import Report
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.saving.background_saver import BackgroundSaver
from orchestrator.loop.saving.collecting import CheckpointCollector
from orchestrator.loop.saving.contents import CheckpointContents, LoadedCheckpoint
from orchestrator.loop.saving.cursor import EpochProgress, RunCursor
from orchestrator.loop.saving.flushing import RowFlusher
from orchestrator.loop.saving.random_states import RandomStates
from orchestrator.loop.saving.restoring import load_checkpoint, restore_hook
from orchestrator.loop.saving.run_checkpoints import RunCheckpoints
from orchestrator.loop.saving.saver import CheckpointSaver, Saver
from orchestrator.loop.saving.saving_settings import SavingSettings
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.stopping import StopDecision, agree_to_stop
from orchestrator.loop.task_errors import check_metric_names
from orchestrator.task import Task


@dataclass(frozen=True)
class RunShare:
    """What a run has for itself in a training that it may share; by default everything."""

    index: int = 0
    """Number of the run, among those that share the training."""
    own_fields: AbstractContextManager[None] = nullcontext()
    """Context in which the state has this run's own fields."""
    own_hooks: Collection[str] | None = None
    """Names of the hooks that belong to this run alone; None for all its hooks."""
    training_files: TrainingFiles | None = None
    """Files of the training that a run has already stored."""


UNSHARED = RunShare()
"""Of a run that has a training for itself."""


class TrainingRun(ABC):
    """A run in a worker, which owns its state, plan, rows, checkpoints and progress.

    A loop trains it. A collective method must be called on every rank.
    """

    def __init__(
        self,
        experiment: Experiment,
        context: RunContext,
        plan: Plan,
        *,
        task: Task,
        clock: SpanClock,
        state: LoopState,
        epoch: EpochProgress,
        contents: CheckpointContents,
        share: RunShare = UNSHARED,
    ) -> None:
        self.index = share.index
        self.own_fields = share.own_fields
        self.own_hooks = plan.hooks.keys() if share.own_hooks is None else share.own_hooks
        """Names of the hooks that belong to this run alone, not to a training that it shares."""
        self.task = task
        self.experiment = experiment
        self.world = context.world
        self.recorder = context.recorder
        self.plan = plan
        self.clock = clock
        self.state = state
        self.cursor = RunCursor(state, epoch)
        self.decision = StopDecision()
        """The last decision of all ranks whether the run ends."""
        self.ended_at: int | None = None
        """Training iteration at which the run has ended; None before."""
        self.flusher = RowFlusher(self.recorder, context.media, plan, state, self.cursor)
        self.random_states = RandomStates()
        self.contents = contents
        self._stop_requested = context.stop_requested
        self._media = context.media
        self.store = context.store
        settings = SavingSettings.read(plan)
        self.saver = self._make_saver(context, settings, share.training_files)
        self.checkpoints = self._make_checkpoints(settings)
        self.world.when_aborted.append(self.recorder.drop_device_values)

    def _make_saver(
        self, context: RunContext, settings: SavingSettings, training_files: TrainingFiles | None
    ) -> Saver:
        if context.store is None or not context.saves:
            return Saver(self.state)
        collector = CheckpointCollector(
            self.state, self.plan, self.contents, self.cursor, self.world, self.random_states
        )
        parts = (context.store, collector, self.flusher, context.send_artifacts)
        if settings.in_background:
            return BackgroundSaver(*parts)
        return CheckpointSaver(*parts, training_files)

    def _make_checkpoints(self, settings: SavingSettings) -> RunCheckpoints:
        return RunCheckpoints(
            self.saver,
            self.state,
            self.world,
            self.clock,
            saves_end=settings.saves_end,
        )

    @property
    def is_leader(self) -> bool:
        """True if the training's rows and hooks are those of this run."""
        return self.index == 0

    @property
    def remaining_plan(self) -> Plan:
        """Plan of the hooks that have not ended: once the run has ended, only those of a training
        that it shares."""
        if self.ended_at is None:
            return self.plan
        _, others = self.plan.split(self.own_hooks)
        return others

    # From the first event to the last

    def restore(self, name: str) -> None:
        """Restore a checkpoint and fire `on_load`; collective.

        Raises CheckpointError if it does not fit.
        """
        if self.store is None:
            raise CheckpointError("this loop has no store to restore from")
        loaded = load_checkpoint(self.store, name, self.contents, self.world)
        self.cursor.restore(loaded.position_of_rank)
        if self.is_leader:
            self.contents.restore(loaded)
        self._restore_progress(loaded)
        for hook_name, hook in self.plan.hooks.items():
            if self.is_leader or hook_name in self.own_hooks:
                restore_hook(hook, hook_name, loaded)
        self.saver.continue_from(name)
        origin = {"name": name, "copied_from": loaded.copied_from}
        self.plan.fire("on_load", self.state, {**loaded.shared, **origin})

    def _restore_progress(self, loaded: LoadedCheckpoint) -> None:
        """Restore the random states, the metrics and the reasons to stop."""
        restored = loaded.rank_state.get("random")
        self.random_states.restored = restored
        self.random_states.after_training = loaded.rank_state.get("after_training") or restored
        self.state.metrics = dict(loaded.manifest["metrics"])
        # Another run that continues from this checkpoint does not stop. It may have the same name.
        if loaded.copied_from is None:
            self.state.stop_reasons += loaded.manifest["stop_reasons"]

    def end(self) -> None:
        """End the run's own hooks; those of a training that it shares may continue.

        Abandons a checkpoint that other ranks have not written in time.
        """
        own, _ = self.plan.split(self.own_hooks)
        with ExitStack() as stack:
            # An error of one of them does not prevent the others.
            stack.callback(own.fire, "on_end", self.state)
            stack.callback(self.saver.finish_without_peers)
            stack.callback(self._media.flush)

    def close(self) -> None:
        """Close the rows, and wait until old checkpoints are deleted."""
        self.saver.close()
        self.flusher.close()

    # Parts of a round

    @abstractmethod
    def list_phases(self) -> tuple[str, ...]:
        """Return all phases of the run."""

    def is_finished(self) -> bool:
        """Return whether all epochs or steps are trained, at the end of a training phase."""
        return self.cursor.stage is not Stage.TRAIN and self.state.finished

    def end_training(self, decision: StopDecision, random_state: dict[str, Any] | None) -> None:
        """End a training phase, with the random state after it, unless the run is interrupted
        within the phase."""
        self.decision = decision
        if decision.is_interruption:
            return
        self.cursor.end_train_phase()
        self.random_states.after_training = random_state

    def agree_to_stop(self) -> None:
        """Decide with all ranks whether the run ends here; collective."""
        is_interrupted = self._stop_requested()
        self.decision = agree_to_stop(self.state, self.world, is_interrupted=is_interrupted)

    def report(self, *, run_ends: bool, is_final: bool) -> Report:
        """End a round: commit its checkpoint, fire `on_report`, write the rows, and return the
        report; `is_final` if none follows. Collective."""
        if run_ends:
            self.saver.finish()
        else:
            self.saver.finish_if_written()

        metrics = self._collect_metrics()
        check_metric_names(self.state.metrics, self.plan.hooks)
        self.plan.fire("on_report", self.state, metrics)
        self.flusher.flush()

        report = self._make_report(metrics, is_final=is_final)
        self.state.metrics = {}
        if not report.is_partial:
            self.cursor.end_round()
        return report

    def _collect_metrics(self) -> dict[str, Any]:
        """Return the loop's own metrics for a report; hooks add metrics in `on_report`."""
        state = self.state
        return {
            "epoch": self.cursor.epoch_label,
            "step": state.step,
            "iteration": state.iteration,
            "samples": state.samples,
            **state.metrics,
        }

    def _make_report(self, metrics: dict[str, Any], *, is_final: bool) -> Report:
        return Report(
            metrics,
            stopped=self.decision.reasons,
            interrupted=self.decision.is_interruption,
            is_final=is_final,
            is_partial=self.cursor.stage is Stage.TRAIN,
            phases=self.list_phases(),
            run_index=self.index,
        )
