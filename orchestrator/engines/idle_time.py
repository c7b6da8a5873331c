"""The time in which a loop makes no progress. Used in workers."""

from typing import Any

from hooks.state import State


class IdleTime:
    """The seconds since the last progress of a loop: a new iteration, epoch or phase."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.state: State | None = None
        """State of the loop; None while the model is built."""
        self.start_iteration = 0
        """Iterations that were done when the loop began."""
        self._progress: tuple[Any, ...] = ()

    def follow(self, state: State) -> None:
        """Read progress from a loop's state from now on."""
        self.state = state
        self.start_iteration = state.iteration

    def add(self, passed_s: float, *, is_paused: bool) -> None:
        """Add the time since the last call, unless the loop has made progress since or has been
        paused."""
        progress = self._read_progress()
        has_progress = progress != self._progress
        self._progress = progress
        if has_progress or is_paused:
            self.seconds = 0.0
        else:
            self.seconds += passed_s

    def _read_progress(self) -> tuple[Any, ...]:
        state = self.state
        if state is None:
            return ()
        return state.phase, state.epoch, state.iteration, state.phase_iteration
