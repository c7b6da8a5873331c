"""The run of a task with a custom loop, whose checkpoints hold what the task names. Runs in
workers."""

from collections.abc import Mapping
from dataclasses import dataclass

from hooks.hook import Hook
from hooks.metrics.names import PHASES
from orchestrator.errors import TaskError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.custom.custom_checkpoints import CustomCheckpoints
from orchestrator.loop.custom.custom_contents import CheckpointedParts
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.rank_plan import make_plan
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.run_share import RunShare
from orchestrator.loop.saving.cursor import EpochProgress
from orchestrator.loop.saving.run_saving import build_saving
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.task_errors import COLUMNS
from orchestrator.loop.training_run import TrainingRun
from orchestrator.randomness import seed_all
from orchestrator.task import Task, attach_progress
from orchestrator.user_code.failures import find_source_location


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
    # All ranks seed alike before the task makes anything, as a hooked loop does.
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
