"""The random states with which training and evaluations continue. Runs in workers."""

from collections.abc import Mapping
from typing import Any

from orchestrator.randomness import random_state, restore_random_state


class RandomStates:
    """The random states of a run at the end of a training phase, and of its restored checkpoint."""

    def __init__(self) -> None:
        self._after_training: dict[str, Any] | None = None
        """At the end of the last training phase, with which each evaluation begins."""
        self._restored: dict[str, Any] | None = None
        """Of the restored checkpoint, until training continues."""

    def collect(self, *, is_evaluated: bool) -> dict[str, Any]:
        """Return the random states for a checkpoint, which is saved after an evaluation or before
        it."""
        return {
            "random": random_state(),
            "after_training": self._after_training if is_evaluated else None,
        }

    def restore(self, rank_state: Mapping[str, Any]) -> None:
        """Take the random states of a checkpoint, to continue with them later."""
        self._restored = rank_state.get("random")
        self._after_training = rank_state.get("after_training") or self._restored

    def end_training(self, state: dict[str, Any] | None) -> None:
        """Remember the random state at the end of a training phase."""
        self._after_training = state

    def continue_training(self) -> None:
        """Restore the checkpoint's random state, once, right before training continues."""
        if self._restored is not None:
            restore_random_state(self._restored)
            self._restored = None

    def rewind(self) -> None:
        """Restore the random state at the end of the last training phase."""
        if self._after_training is not None:
            restore_random_state(self._after_training)
