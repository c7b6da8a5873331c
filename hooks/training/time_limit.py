"""Limit of a run's wall time."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any, ClassVar

from annotated_types import Gt

from hooks.duration import parse_duration
from hooks.hook import Hook
from hooks.state import State


@dataclass
class TimeLimit(Hook):
    """Limit of a run's wall time: the run is saved, ends as interrupted, and can be resumed.

        time_limit: {limit: 2h30m}

    Time counts over all attempts, so a paused run needs a higher limit to continue. Checked after each iteration;
    saving comes on top. Source: Lightning Timer, torchtnt TimeLimitInterrupter.
    """

    limit: Annotated[float, Gt(0)] | str
    """Seconds, or a duration such as 2h30m, 90s or 1d 12h."""

    evaluates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        try:
            self._limit_s = parse_duration(self.limit)
        except ValueError as error:
            raise ValueError(f"limit {error}") from None
        self._before_s = 0.0
        self._began: float | None = None
        self._asked = False

    def on_start(self, state: State) -> None:
        self._began = monotonic()

    def on_step(self, state: State) -> None:
        if self._asked or self._used_s() < self._limit_s:
            return
        self._asked = True
        state.request_pause(
            f"the time limit of {self.limit} is reached; to continue, raise it in the run's experiment.yaml and resume"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"used_s": self._used_s()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before_s = state["used_s"]

    def _used_s(self) -> float:
        return self._before_s + (0.0 if self._began is None else monotonic() - self._began)
