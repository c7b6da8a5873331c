"""The run of a task with a custom loop, whose checkpoints hold what the task names. Runs in
workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hooks.hook import Hook
from hooks.metrics.names import PHASES
from orchestrator.errors import TaskError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.custom.custom_contents import CheckpointedParts
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.rank_plan import make_plan
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.run_share import RunShare
from orchestrator.loop.saving.cursor import EpochProgress
from orchestrator.loop.saving.run_checkpoints import RunCheckpoints
from orchestrator.loop.saving.run_saving import build_saving
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.task_errors import COLUMNS
from orchestrator.loop.training_run import TrainingRun
from orchestrator.randomness import seed_all
from orchestrator.task import Task, attach_progress
from orchestrator.user_code.failures import find_source_location


@dataclass(eq=False, kw_only=True)
class CustomCheckpoints(RunCheckpoints):
    """The checkpoints of a task with a custom loop, which can be saved once the task has named
    their parts."""

    parts: CheckpointedParts
    task: Task
    _has_warned_of_no_parts: bool = field(default=False, init=False)

    def start(self) -> None:
        if self.parts.are_named:
            super().start()
        elif self.saver.last_position != self.state.position:
            raise TaskError(
                "train() must call session.restore() before training, which names what a checkpoint"
                f" saves{find_source_location(self.task.train)}"
            )

    def can_save(self) -> bool:
        if not self.parts.are_named:
            self._warn_of_no_parts()
        return self.parts.are_named

    def _warn_of_no_parts(self) -> None:
        """Show once that nothing is saved, unless a restored checkpoint tells that parts follow."""
        if self._has_warned_of_no_parts:
            return
        self._has_warned_of_no_parts = True
        if self.parts.to_restore is None and self.world.is_master:
            self.state.show(
                "no checkpoint is saved, as train() does not call session.restore(); a resume"
                " starts from the beginning"
            )


@dataclass(eq=False, kw_only=True)
class CustomRun(TrainingRun):
    """The run of a task with a custom loop. `build_custom_run` builds one."""

    contents: CheckpointedParts
    clock: SpanClock

    def check_restored(self) -> None:
        """Raise TaskError if the run continues from a checkpoint that the task has not restored."""
        saved = self.contents.to_restore
        if saved is not None:
            raise TaskError(
                "train() must call session.restore() before training, to continue from"
                f" '{saved.checkpoint}'{find_source_location(self.task.train)}"
            )

    def save_in_train(self) -> None:
        """Write a checkpoint while the task's `train` runs: in the middle of a round, or between two
        rounds if this one has no row yet. Collective."""
        if self.state.phase_iteration:
            self.checkpoints.start()
            return
        self.cursor.end_round()
        try:
            self.checkpoints.start()
        finally:
            self.cursor.begin_train_phase()


def build_custom_run(
    task: Task, experiment: Experiment, hooks: Mapping[str, Hook], context: RunContext
) -> CustomRun:
    """Build a run with the seed of the experiment, and show its progress to the task; collective."""
    clock = SpanClock()
    plan = make_plan(hooks, context.world, clock)
    seed_all(experiment.seed)
    state = LoopState(
        **context.make_state_fields(experiment),
        max_epochs=experiment.epochs,
        max_steps=experiment.steps,
        loop_columns=frozenset(COLUMNS),
    )
    attach_progress(task, state)

    parts = CheckpointedParts(state)
    saving = build_saving(context, plan, state, EpochProgress(state), parts)
    checkpoints = CustomCheckpoints(
        saver=saving.saver,
        state=state,
        world=context.world,
        clock=clock,
        saves_end=saving.saves_end,
        parts=parts,
        task=task,
    )
    return CustomRun(
        task=task,
        experiment=experiment,
        context=context,
        share=RunShare(plan.hooks),
        plan=plan,
        state=state,
        phases=PHASES,  # those of the task are known only from its reports
        cursor=saving.cursor,
        random_states=saving.random_states,
        contents=parts,
        flusher=saving.flusher,
        checkpoints=checkpoints,
        clock=clock,
    )
