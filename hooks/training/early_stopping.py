"""Early stopping."""

import logging
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt

from hooks.counts import format_count
from hooks.errors import SettingError
from hooks.hook import Hook
from hooks.metrics.direction import Mode, choose_modes
from hooks.metrics.names import explain_missing
from hooks.state import State

logger = logging.getLogger("hookyard")


@dataclass
class EarlyStopping(Hook):
    """Stop training when a metric stops improving, becomes NaN, or reaches a target.

        early_stopping: {monitor: val/accuracy, patience: 5, min_delta: 0.001}

    A value improves if it exceeds the last one that improved by more than `min_delta`, so that
    small gains add up; a constant or NaN never does. All ranks make the same decision, from reduced
    metrics, without communication. Source: MMEngine EarlyStoppingHook.
    """

    monitor: str
    """Metric, such as val/accuracy."""
    mode: Mode | None = None
    """`max` if more is better, `min` if less; by default the meter's `higher_is_better`,
    or from the metric's name."""
    min_delta: Annotated[float, Ge(0)] = 0.0
    """Minimum difference from the last value that improved, which counts as an improvement."""
    patience: Annotated[int, Gt(0)] = 5
    """Number of consecutive values without improvement after which the run ends."""
    check_finite: bool = True
    """End of the run at NaN or infinity; if false, they count as no improvement."""
    stopping_threshold: float | None = None
    """Value at which the run ends at once."""
    strict: bool = True
    """Failure if a phase lacks the metric; if false, a warning is logged."""

    monitors: ClassVar[str] = "monitor"
    monitors_in_training: ClassVar[bool] = True
    observes: ClassVar[bool] = True
    evaluates: ClassVar[bool] = False
    mutable: ClassVar[frozenset[str]] = frozenset({"min_delta", "patience", "stopping_threshold"})
    state_fields: ClassVar[tuple[str, ...]] = ("_best", "_wait")

    def __post_init__(self) -> None:
        self._mode = choose_modes([self.monitor], self.mode)[self.monitor]
        self._best: float | None = None
        self._wait = 0
        """Number of values since the best one."""

    def on_phase_end(self, state: State) -> None:
        if not state.computes(self.monitor) or not state.metrics:
            return
        if self.monitor not in state.metrics:
            self._report_missing(state)
            return

        value = state.metrics[self.monitor]
        self._compare_with_best(value)
        reason = self._explain_stop(value)
        if reason:
            state.request_stop(f"{self.monitor} {reason}")

    def _report_missing(self, state: State) -> None:
        message = f"monitor: {explain_missing(self.monitor, state.metrics)}"
        if self.strict:
            raise SettingError(message)
        logger.warning("early_stopping skips this %s phase: %s", state.phase, message)

    def _compare_with_best(self, value: float) -> None:
        if self._is_improved_by(value):
            self._best = value
            self._wait = 0
        else:
            self._wait += 1

    def _explain_stop(self, value: float) -> str:
        """Return why the run should end after this value; empty if it should not."""
        if self.check_finite and not math.isfinite(value):
            return f"is {value}"
        if self._reaches_threshold(value):
            return f"is {value}, as good as stopping_threshold={self.stopping_threshold}"
        if self._wait < self.patience:
            return ""
        values = format_count(self._wait, "value")
        if self._best is None:
            return f"was not finite in {values}"
        return f"has not improved on {self._best:g} by more than {self.min_delta} in {values}"

    def _reaches_threshold(self, value: float) -> bool:
        if self.stopping_threshold is None or not math.isfinite(value):
            return False
        return self._compute_gain(value, self.stopping_threshold) >= 0

    def _is_improved_by(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return self._best is None or self._compute_gain(value, self._best) > self.min_delta

    def _compute_gain(self, value: float, other: float) -> float:
        """Return by how much a value is better than another."""
        return value - other if self._mode == "max" else other - value
