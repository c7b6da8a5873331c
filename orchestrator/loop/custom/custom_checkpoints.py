"""The checkpoints of a task with a custom loop. Runs in workers."""

from dataclasses import dataclass, field

from orchestrator.errors import TaskError
from orchestrator.loop.custom.custom_contents import CheckpointedParts
from orchestrator.loop.saving.run_checkpoints import RunCheckpoints
from orchestrator.task import Task
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
        elif not self.is_saved:  # what was just restored need not be saved again
            raise TaskError(
                "train() must call session.restore() before training: its arguments are what a"
                f" checkpoint saves{find_source_location(self.task.train)}"
            )

    def can_save(self) -> bool:
        if not self.parts.are_named:
            self._warn_of_no_parts()
        return self.parts.are_named

    def _warn_of_no_parts(self) -> None:
        """Show once that nothing is saved, unless a checkpoint still waits to be restored."""
        if self._has_warned_of_no_parts:
            return
        self._has_warned_of_no_parts = True
        if self.parts.to_restore is None and self.world.is_master:
            self.state.show(
                "no checkpoint is saved, as train() does not call session.restore(); a resume"
                " starts from the beginning"
            )
