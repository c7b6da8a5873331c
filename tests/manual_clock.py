"""A clock that only the test advances, for threads that wait."""

from math import inf
from threading import Condition

_PATIENCE_S = 30
"""Limit for a thread to do its work, on a busy machine."""


class ManualClock:
    """Clock that `advance` moves; in place of a `threading.Event`, its `wait` lasts until the time
    has passed."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due, self._over = -inf, False
        self._changed = Condition()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass for the waiting thread; return when it has done its work, and waits
        again."""
        with self._changed:
            self._until_it_waits()
            self.now += seconds
            self._changed.notify_all()
            self._until_it_waits()

    def _until_it_waits(self) -> None:
        assert self._changed.wait_for(lambda: self._over or self._due > self.now, _PATIENCE_S)

    def wait(self, timeout: float) -> bool:
        with self._changed:
            self._due = self.now + timeout
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._over or self.now >= self._due)
            return self._over

    def set(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
