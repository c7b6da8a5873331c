"""Stops a run that gets no better."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt

from hooks.hook import Hook
from hooks.metrics.direction import Mode, Rule, directions
from hooks.metrics.names import there_are
from hooks.state import State

logger = logging.getLogger("hookyard")


@dataclass
class EarlyStopping(Hook):
    """Asks for the run to end when a metric has not improved for a while, is not finite, or is good enough.

    A value is an improvement where it beats the best by more than `min_delta`, so a constant metric never improves;
    NaN is never the best. Every rank does the same, from metrics that agree over ranks; no communication. Best and
    wait survive a restart. Raises KeyError where the phase that should give the metric does not, if `strict`.
    Source: MMEngine EarlyStoppingHook.
    """

    monitor: str
    """The metric, such as val/accuracy."""
    mode: Mode | None = None
    """Whether more (`max`) or less (`min`) of it is better; told from its name where that is clear."""
    rule: Rule | None = None
    """MMEngine's word for `mode`: `greater` is `max`, `less` is `min`."""
    min_delta: Annotated[float, Ge(0)] = 0.0
    """By how much more than this a value must beat the best to count as better."""
    patience: Annotated[int, Gt(0)] = 5
    """How many values in a row may fail to improve; the last of them stops the run."""
    check_finite: bool = True
    """Stops at once at NaN or infinity; otherwise they count as no improvement."""
    stopping_threshold: float | None = None
    """Stops at once where the metric is this good."""
    strict: bool = True
    """Whether a phase without the metric is an error; otherwise it is passed over, with a warning."""

    observes: ClassVar[bool] = True
    evaluates: ClassVar[bool] = False
    mutable: ClassVar[frozenset[str]] = frozenset({"min_delta", "patience", "stopping_threshold"})

    def __post_init__(self) -> None:
        self._mode = directions([self.monitor], self.mode, self.rule)[self.monitor]
        self._best: float | None = None
        self._wait = 0

    def on_phase_end(self, state: State) -> None:
        if not state.gives(self.monitor) or not state.metrics:
            return
        if self.monitor not in state.metrics:
            self._miss(state)
            return
        reason = self._find_reason(state.metrics[self.monitor])
        if reason:
            state.request_stop(f"{self.monitor} {reason}")

    def _miss(self, state: State) -> None:
        message = f"monitor={self.monitor!r} is no metric of this run; {there_are(state.metrics, self.monitor)}"
        if self.strict:
            raise KeyError(message)
        logger.warning("early stopping passes over this %s phase: %s", state.phase, message)

    def _find_reason(self, value: float) -> str | None:
        """Why the run should end after this value, if it should."""
        if self._improves(value):
            self._best, self._wait = value, 0
        else:
            self._wait += 1
        if self.check_finite and not math.isfinite(value):
            return f"is {value}"
        if self.stopping_threshold is not None and self._gain(value, self.stopping_threshold) >= 0:
            return f"is {value}, as good as stopping_threshold={self.stopping_threshold}"
        if self._wait >= self.patience:
            return f"has not improved on {self._best} by more than {self.min_delta} in {self._wait} values"
        return None

    def _improves(self, value: float) -> bool:
        return math.isfinite(value) and (self._best is None or self._gain(value, self._best) > self.min_delta)

    def _gain(self, value: float, other: float) -> float:
        return value - other if self._mode == "max" else other - value

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "wait": self._wait}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._wait = state["best"], state["wait"]
