"""Limit of a run's wall time."""

from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, ClassVar

from hooks.duration import Duration
from hooks.hook import Hook
from hooks.state import State


@dataclass
class TimeLimit(Hook):
    """Limit a run's wall time: the run is saved, ends as interrupted, and can be resumed.

        time_limit: {limit: 2h30m}

    Time accumulates over all attempts, so a paused run needs a higher limit to continue. Checked
    after each iteration; saving takes additional time. Source: Lightning Timer, torchtnt
    TimeLimitInterrupter.
    """

    limit: Duration
    """Maximum wall time: seconds, or a duration such as 2h30m, 90s or 1d 12h."""

    evaluates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._earlier_s = 0.0
        self._start: float | None = None
        self._requested = False

    def on_start(self, state: State) -> None:
        self._start = monotonic()

    def on_step(self, state: State) -> None:
        if self._requested or self._elapsed_s() < self.limit:
            return
        self._requested = True
        state.request_pause(
            f"the time limit of {timedelta(seconds=self.limit)} is reached; to continue, raise"
            f" hooks.{self.name}.limit in the experiment.yaml of the run (of a trial: of its sweep)"
            " and resume"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"used_s": self._elapsed_s()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._earlier_s = state["used_s"]

    def _elapsed_s(self) -> float:
        """Return the wall time of all attempts so far."""
        if self._start is None:
            return self._earlier_s
        return self._earlier_s + (monotonic() - self._start)
