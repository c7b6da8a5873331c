"""A run in a worker: its state, plan, rows, checkpoints and progress."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack, nullcontext
from time import perf_counter
from typing import Any

from hooks.checkpointing.checkpoint import Checkpoint
from hooks.event_plan import Plan
from hooks.position import Stage
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
from orchestrator.loop.saving.saver import CheckpointSaver, Saver
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.stopping import StopDecision, agree_to_stop
from orchestrator.loop.task_errors import check_metric_names
from orchestrator.task import Task


class TrainingRun(ABC):
    """A run in a worker, which owns its state, plan, rows, checkpoints and progress.

    A loop trains it. A collective method must be called on every rank.
    """

    index = 0
    """Number of the run, among those that share a training."""
    own_fields: AbstractContextManager[None] = nullcontext()
    """Context in which the state has this run's own fields."""

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
    ) -> None:
        self.task = task
        self.experiment = experiment
        self.world = context.world
        self.recorder = context.recorder
        self.plan = plan
        self.clock = clock
        self.state = state
        self.cursor = RunCursor(state, epoch)
        self.stop = StopDecision()
        """The last decision of all ranks whether the run ends."""
        self.ended_at: int | None = None
        """Training iteration at which the run has ended; None before."""
        self._stop_requested = context.stop_requested
        self.media = context.media
        self.flusher = RowFlusher(self.recorder, self.media, plan, self.state, self.cursor)
        self.random_states = RandomStates()
        self.contents = contents
        self.store = context.store
        """The checkpoints to restore; None without any."""
        self.saving = self._make_saver(context)
        self.world.when_aborted.append(self.recorder.drop_device_values)

    def _make_saver(self, context: RunContext) -> Saver:
        if context.store is None or not context.saves:
            return Saver(self.state)
        collector = CheckpointCollector(
            self.state, self.plan, self.contents, self.cursor, self.world, self.random_states
        )
        hooks = self.plan.hooks.values()
        in_background = any(isinstance(hook, Checkpoint) and hook.background for hook in hooks)
        parts = (context.store, collector, self.flusher, context.send_artifacts)
        return BackgroundSaver(*parts) if in_background else CheckpointSaver(*parts)

    @property
    def is_leader(self) -> bool:
        """True if the training's rows and hooks are those of this run."""
        return self.index == 0

    @property
    def own_hooks(self) -> Collection[str]:
        """Names of the hooks that belong to this run alone, not to a training that it shares."""
        return self.plan.hooks.keys()

    @property
    def remaining_plan(self) -> Plan:
        """Plan of the hooks that have not ended: once the run has ended, only those of a training
        that it shares."""
        if self.ended_at is None:
            return self.plan
        _, others = self.plan.split(self.own_hooks)
        return others

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
        self.saving.continue_from(name)
        self.plan.fire(
            "on_load",
            self.state,
            {**loaded.shared, "name": name, "copied_from": loaded.copied_from},
        )

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
            stack.callback(self.saving.finish_without_peers)
            stack.callback(self.media.flush)

    def close(self) -> None:
        """Close the rows, and wait until old checkpoints are deleted."""
        self.saving.close()
        self.flusher.close()

    # Parts of a round

    @abstractmethod
    def list_phases(self) -> tuple[str, ...]:
        """Return all phases of the run."""

    def is_finished(self) -> bool:
        """Return whether all epochs or steps are trained, at the end of a training phase."""
        return self.cursor.stage is not Stage.TRAIN and self.state.finished

    def agree_to_stop(self) -> None:
        """Decide with all ranks whether the run ends here; collective."""
        is_interrupted = self._stop_requested()
        self.stop = agree_to_stop(self.state, self.world, is_interrupted=is_interrupted)

    def make_report(self, *, run_ends: bool, is_final: bool) -> Report:
        """Return the report of a round; `is_final` if none follows."""
        if run_ends:
            self.saving.finish()
        self.saving.finish_if_written()

        metrics = self._collect_metrics()
        check_metric_names(self.state.metrics, self.plan.hooks)
        self.plan.fire("on_report", self.state, metrics)
        self.flusher.flush()
        self.state.metrics = {}

        is_partial = self.cursor.stage is Stage.TRAIN
        if not is_partial:
            self.cursor.stage = Stage.REPORTED
        return Report(
            metrics,
            stopped=self.stop.reasons,
            interrupted=self.stop.is_interruption,
            is_final=is_final,
            is_partial=is_partial,
            phases=self.list_phases(),
            run_index=self.index,
        )

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

    # Checkpoints

    def save(self) -> str | None:
        """Write a checkpoint between two reports and return its name; collective."""
        self.start_save()
        self.saving.finish()
        return self.saving.last_name

    def save_if_requested(self) -> None:
        """Save a checkpoint if a hook has requested one; collective."""
        if self.state.checkpoint_reasons:
            self._save_if_possible()

    def save_unless_saved(self) -> None:
        """Save a checkpoint of this position, unless the newest one is of it; collective."""
        if self.saving.last_position != self.state.position:
            self._save_if_possible()

    def _save_if_possible(self) -> None:
        self.state.checkpoint_reasons.clear()
        if self.can_save():
            self.start_save()

    def can_save(self) -> bool:
        """Return whether a checkpoint has contents to hold."""
        return True

    def save_stop(self) -> None:
        """Save a checkpoint where the run stops: of an interruption always, otherwise if a hook
        saves the end of training. Collective."""
        if self.stop.is_interruption or (self.stop and self.saves_last()):
            self.save_unless_saved()

    def saves_last(self) -> bool:
        """Return whether a hook saves the end of training."""
        hooks = self.plan.hooks.values()
        return any(isinstance(hook, Checkpoint) and hook.save_last for hook in hooks)

    def start_save(self) -> None:
        """Save a checkpoint, or start saving it in the background; collective."""
        start = perf_counter()
        self.saving.save(self.state.milestone)
        self.clock.checkpoint_s += perf_counter() - start

    def finish_if_written(self) -> None:
        """Commit a checkpoint whose background write has finished; collective."""
        start = perf_counter()
        if self.saving.finish_if_written():
            self.clock.checkpoint_s += perf_counter() - start
        elif self.world.world_size > 1:
            self.clock.waiting_s += perf_counter() - start
