"""The random states with which training and evaluations continue. Runs in workers."""

from typing import Any

from orchestrator.randomness import restore_random_state


class RandomStates:
    """The random states of a run at the end of a training phase, and of its restored checkpoint."""

    def __init__(self) -> None:
        self.after_training: dict[str, Any] | None = None
        """At the end of the last training phase, with which each evaluation begins."""
        self.restored: dict[str, Any] | None = None
        """Of the restored checkpoint, until training continues."""

    def continue_training(self) -> None:
        """Restore the checkpoint's random state, once, right before training continues."""
        if self.restored is not None:
            restore_random_state(self.restored)
            self.restored = None

    def rewind(self) -> None:
        """Restore the random state at the end of the last training phase."""
        if self.after_training is not None:
            restore_random_state(self.after_training)
