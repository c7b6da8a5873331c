"""The run of a task with a custom loop, whose checkpoints hold what the task names. Runs in
workers."""

from hooks.metrics.names import PHASES
from hooks.position import Stage
from orchestrator.errors import TaskError
from orchestrator.loop.custom.custom_contents import CheckpointedParts
from orchestrator.loop.training_run import TrainingRun
from orchestrator.user_code.failures import find_source_location


class CustomRun(TrainingRun):
    """The run of a task with a custom loop; it can be saved once the task has named the parts of a
    checkpoint."""

    contents: CheckpointedParts
    _has_warned_of_no_parts = False

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
            self.start_save()
            return
        self.cursor.stage = Stage.REPORTED
        try:
            self.start_save()
        finally:
            self.cursor.stage = Stage.TRAIN

    def start_save(self) -> None:
        if self.contents.are_named:
            super().start_save()
        elif self.saving.last_position != self.state.position:
            raise TaskError(
                "train() must call session.restore() before training, which names what a checkpoint"
                f" saves{find_source_location(self.task.train)}"
            )

    def can_save(self) -> bool:
        if not self.contents.are_named:
            self._warn_of_no_parts()
        return self.contents.are_named

    def _warn_of_no_parts(self) -> None:
        """Show once that nothing is saved, unless a restored checkpoint tells that parts follow."""
        if self._has_warned_of_no_parts:
            return
        self._has_warned_of_no_parts = True
        if self.contents.to_restore is None and self.world.is_master:
            self.state.show(
                "no checkpoint is saved, as train() does not call session.restore(); a resume"
                " starts from the beginning"
            )
