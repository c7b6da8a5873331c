"""The run of a task with a custom loop, whose checkpoints hold what the task names. Runs in
workers."""

from hooks.metrics.names import PHASES
from orchestrator.errors import TaskError
from orchestrator.loop.custom.custom_contents import CheckpointedParts
from orchestrator.loop.training_run import TrainingRun
from orchestrator.user_code import find_source_location


class CustomRun(TrainingRun):
    """The run of a task with a custom loop; it can be saved once the task has named the parts of a
    checkpoint."""

    contents: CheckpointedParts
    _has_warned = False

    def phases(self) -> tuple[str, ...]:
        return PHASES  # its phases are known only from its reports

    def start_save(self) -> None:
        if self.contents.are_named:
            super().start_save()
        elif self.saving.last_position != self.state.position:
            raise TaskError(
                "train() must call session.restore() before training, which names what a checkpoint"
                f" saves{find_source_location(self.task.train)}"
            )

    def save_if_requested(self) -> None:
        if self.state.checkpoint_reasons and not self.contents.are_named:
            self.state.checkpoint_reasons.clear()
            self._warn_of_no_parts()
        super().save_if_requested()

    def _warn_of_no_parts(self) -> None:
        if (
            self.contents.pending_checkpoint is None
            and not self._has_warned
            and self.world.is_master
        ):
            self.state.show(
                "no checkpoint is saved, as train() does not call session.restore(); a resume"
                " starts from the beginning"
            )
        self._has_warned = True
