"""A run in a worker, as its loop sees it: parts of a round, reports, and its end."""

import math
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from hooks.event_plan import Plan
from hooks.metrics.names import get_kind
from hooks.position import Stage
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.errors import CheckpointError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.report import Report
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.run_share import RunShare
from orchestrator.loop.saving.contents import CheckpointContents, LoadedCheckpoint
from orchestrator.loop.saving.cursor import RunCursor
from orchestrator.loop.saving.flushing import RowFlusher
from orchestrator.loop.saving.random_states import RandomStates
from orchestrator.loop.saving.restoring import load_checkpoint, restore_hook
from orchestrator.loop.saving.run_checkpoints import RunCheckpoints
from orchestrator.loop.stopping import StopDecision, agree_to_stop
from orchestrator.loop.task_errors import check_metric_names
from orchestrator.loop.world import World
from orchestrator.task import Task


@dataclass(eq=False, kw_only=True)
class TrainingRun:
    """A run in a worker, with what it has for itself: its plan, rows, checkpoints and progress.

    A loop trains it. A collective method must be called on every rank.
    """

    task: Task
    experiment: Experiment
    context: RunContext
    share: RunShare
    """What the run has for itself in a training that it may share."""
    plan: Plan
    state: LoopState
    phases: tuple[str, ...]
    """All phases of the run."""
    cursor: RunCursor
    random_states: RandomStates
    contents: CheckpointContents
    flusher: RowFlusher
    checkpoints: RunCheckpoints
    decision: StopDecision = field(default=StopDecision(), init=False)
    """The last decision of all ranks whether the run ends."""
    ended_at: int | None = field(default=None, init=False)
    """Training iteration at which the run has ended; None before."""

    @property
    def world(self) -> World:
        return self.context.world

    @property
    def recorder(self) -> Recorder:
        return self.context.recorder

    @property
    def store(self) -> CheckpointStore | None:
        return self.context.store

    # Its share in the training

    @property
    def index(self) -> int:
        """Number of the run, among those that share the training."""
        return self.share.index

    @property
    def is_leader(self) -> bool:
        """True if the training's rows and hooks are those of this run."""
        return self.share.is_leader

    @property
    def own_fields(self) -> AbstractContextManager[None]:
        """Context in which the state has this run's own fields."""
        return self.share.own_fields

    @property
    def own_hooks(self) -> Collection[str]:
        """Names of the hooks that belong to this run alone."""
        return self.share.own_hooks

    @property
    def remaining_plan(self) -> Plan:
        """Plan of the hooks that have not ended: once the run has ended, only those of a training
        that it shares."""
        if self.ended_at is None:
            return self.plan
        _, others = self.plan.split(self.own_hooks)
        return others

    def fire_remaining(self, event: str, *arguments: Any) -> None:
        """Fire an event for the hooks that have not ended."""
        with self.own_fields:
            self.remaining_plan.fire(event, self.state, *arguments)

    @property
    def info(self) -> Mapping[str, Any]:
        """Information from the run's hooks, as in `state.info`."""
        with self.own_fields:
            return self.state.info

    # From the first event to the last

    def restore(self, name: str) -> None:
        """Restore a checkpoint and fire `on_load`; collective.

        Raises CheckpointError if it does not fit.
        """
        with self.own_fields:
            self._restore(name)

    def _restore(self, name: str) -> None:
        if self.store is None:
            raise CheckpointError("this loop has no store to restore from")
        loaded = load_checkpoint(self.store, name, self.contents, self.world)
        self.cursor.restore(loaded.position_of_rank)
        if self.is_leader:
            self.contents.restore(loaded)
        self.random_states.restore(loaded.rank_state)
        self._restore_metrics(loaded)
        self._restore_hooks(loaded)
        self.checkpoints.continue_from(name)

        origin = {"name": name, "copied_from": loaded.copied_from}
        self.plan.fire("on_load", self.state, {**loaded.shared, **origin})

    def _restore_metrics(self, loaded: LoadedCheckpoint) -> None:
        """Restore the metrics, and the reasons to stop."""
        self.state.metrics = dict(loaded.manifest["metrics"])
        # Another run that continues from this checkpoint does not stop. It may have the same name.
        # A replay goes on to its last iteration.
        if loaded.copied_from is not None or math.isfinite(self.context.limits.last_iteration):
            return
        agreed = loaded.manifest["stop_reasons"]
        own = loaded.rank_state.get("stop_reasons", [])
        self.state.stop_reasons += dict.fromkeys([*agreed, *own])
        if agreed and self.cursor.stage is Stage.TRAINED and not self.state.epoch_completed:
            # The training phase has ended because of them.
            self.decision = StopDecision(tuple(agreed))

    def _restore_hooks(self, loaded: LoadedCheckpoint) -> None:
        """Restore the hooks, without those of a training that another run provides."""
        for name, hook in self.plan.hooks.items():
            if self.is_leader or name in self.own_hooks:
                restore_hook(hook, name, loaded)

    def end(self) -> None:
        """End the run with its own hooks and its rows; those of a training that it shares may
        continue.

        Abandons a checkpoint that other ranks have not written in time.
        """
        own, _ = self.plan.split(self.own_hooks)
        with self.own_fields, ExitStack() as stack:
            # An error of one of them does not prevent the others.
            stack.callback(own.fire, "on_end", self.state)
            stack.callback(self.checkpoints.finish_without_peers)
            stack.callback(self.context.media.flush)
        if not self.is_leader:
            self.close()
        self.ended_at = self.state.iteration

    def close(self) -> None:
        """Close the rows, and wait until old checkpoints are deleted."""
        self.checkpoints.close()
        self.flusher.close()

    # Parts of a round

    def is_finished(self) -> bool:
        """Return whether all epochs or steps are trained, at the end of a training phase."""
        return self.cursor.stage is not Stage.TRAIN and self.state.finished

    def ends_here(self) -> bool:
        """Return whether the run has no further training phase, because it is finished or stops."""
        return bool(self.decision) or self.is_finished()

    def end_training(self, decision: StopDecision, random_state: dict[str, Any] | None) -> None:
        """End a training phase, with the random state after it, unless the run is interrupted
        within the phase."""
        self.decision = decision
        if decision.is_interruption:
            return
        self.cursor.end_train_phase()
        self.random_states.end_training(random_state)

    def agree_to_stop(self) -> None:
        """Decide with all ranks whether the run ends here; collective."""
        is_interrupted = self.context.stop_requested()
        with self.own_fields:
            self.decision = agree_to_stop(self.state, self.world, is_interrupted=is_interrupted)

    def save_stop(self) -> None:
        """Save a checkpoint if the run stops here; collective."""
        with self.own_fields:
            self.checkpoints.save_stop(self.decision)

    def save_if_requested(self) -> None:
        """Save a checkpoint if a hook has requested one; collective."""
        with self.own_fields:
            self.checkpoints.save_if_requested()

    def save_unless_saved(self) -> None:
        """Save a checkpoint of this position, unless the newest one is of it; collective."""
        with self.own_fields:
            self.checkpoints.save_unless_saved()

    def commit_if_written(self) -> None:
        """Commit a checkpoint whose background write has finished; collective."""
        with self.own_fields:
            self.checkpoints.finish_if_written()

    def report(self, *, is_final: bool) -> Report:
        """End a round: commit its checkpoint, fire `on_report`, write the rows, and return the
        report; `is_final` if none follows. Collective."""
        with self.own_fields:
            return self._report(is_final=is_final)

    def _report(self, *, is_final: bool) -> Report:
        if self.ends_here():
            self.checkpoints.finish()
        else:
            self.checkpoints.finish_if_written()

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
        metrics = {
            "epoch": self.cursor.epoch_label,
            "step": state.step,
            "iteration": state.iteration,
            "samples": state.samples,
            **state.metrics,
        }
        if get_kind(state.phase) != "test":
            for name, value in self.share.hook_metrics.items():
                metrics.setdefault(name, value)
        return metrics

    def _make_report(self, metrics: dict[str, Any], *, is_final: bool) -> Report:
        return Report(
            metrics,
            stopped=self.decision.reasons,
            interrupted=self.decision.is_interruption,
            is_final=is_final,
            is_partial=self.cursor.stage is Stage.TRAIN,
            phases=self.phases,
            run_index=self.index,
        )
