"""The run of a task with a custom loop, whose checkpoints hold what the task names. Runs in
workers."""

from hooks.metrics.names import PHASES
from hooks.state import State
from orchestrator.errors import TaskError
from orchestrator.loop.custom.custom_contents import CheckpointedParts
from orchestrator.loop.saving.run_checkpoints import RunCheckpoints
from orchestrator.loop.saving.saver import Saver
from orchestrator.loop.saving.saving_settings import SavingSettings
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.training_run import TrainingRun
from orchestrator.loop.world import World
from orchestrator.task import Task
from orchestrator.user_code.failures import find_source_location


class CustomCheckpoints(RunCheckpoints):
    """The checkpoints of a task with a custom loop, which can be saved once the task has named
    their parts."""

    def __init__(
        self,
        saver: Saver,
        state: State,
        world: World,
        clock: SpanClock,
        *,
        saves_end: bool,
        parts: CheckpointedParts,
        task: Task,
    ) -> None:
        super().__init__(saver, state, world, clock, saves_end=saves_end)
        self._parts = parts
        self._task = task
        self._has_warned_of_no_parts = False

    def start(self) -> None:
        if self._parts.are_named:
            super().start()
        elif self._saver.last_position != self._state.position:
            raise TaskError(
                "train() must call session.restore() before training, which names what a checkpoint"
                f" saves{find_source_location(self._task.train)}"
            )

    def can_save(self) -> bool:
        if not self._parts.are_named:
            self._warn_of_no_parts()
        return self._parts.are_named

    def _warn_of_no_parts(self) -> None:
        """Show once that nothing is saved, unless a restored checkpoint tells that parts follow."""
        if self._has_warned_of_no_parts:
            return
        self._has_warned_of_no_parts = True
        if self._parts.to_restore is None and self._world.is_master:
            self._state.show(
                "no checkpoint is saved, as train() does not call session.restore(); a resume"
                " starts from the beginning"
            )


class CustomRun(TrainingRun):
    """The run of a task with a custom loop."""

    contents: CheckpointedParts

    def _make_checkpoints(self, settings: SavingSettings) -> RunCheckpoints:
        return CustomCheckpoints(
            self.saver,
            self.state,
            self.world,
            self.clock,
            saves_end=settings.saves_end,
            parts=self.contents,
            task=self.task,
        )

    def list_phases(self) -> tuple[str, ...]:
        return PHASES  # its phases are known only from its reports

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
