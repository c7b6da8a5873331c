"""A statistic of a column over a window, and the values in the window."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from hooks.logs.shared.unread_rows import POSITION_COLUMNS

Method = Literal["mean", "median", "min", "max", "current"]
Window = Annotated[int, Ge(1)] | Literal["line", "epoch", "global"]
"""A number of iterations that recorded the column; `line` is since the last line, `global` the
whole run."""


def _compute_mean(values: Sequence[float]) -> float:
    # Unlike `sum`, `fsum` refuses inf - inf and an overflow.
    return sum(values) / len(values)


_METHODS: dict[str, Callable[[Sequence[float]], Any]] = {
    "mean": _compute_mean,
    "median": np.median,
    "min": np.min,
    "max": np.max,
}


@dataclass(frozen=True)
class Statistic:
    """A statistic of one column over a window. Source: MMEngine LogProcessor's `custom_cfg`."""

    column: str
    """Recorded column, such as `loss` or `step_s`."""
    method: Method = "mean"
    """Statistic of the values; NaN if one of them is NaN."""
    window: Window = 10
    """Iterations of the phase that recorded the column: a number, `line` (since the last line or
    point), `epoch`, or `global` (the whole run). A validation is an epoch of its own."""

    def __post_init__(self) -> None:
        if self.column in POSITION_COLUMNS:
            raise ValueError(
                f"{self.column} is a row's position, which has no statistics; name another column"
            )
        if self.method == "median" and self.window == "global":
            raise ValueError(
                f"the median of {self.column} needs a window: write window: epoch, or a number"
            )


@dataclass
class WindowValues:
    """Values in a window, or their sum, minimum or maximum if that is enough."""

    method: Method
    window: Window
    count: int = 0
    running: float = 0.0
    kept: list[float] = field(default_factory=list)

    @property
    def _keeps_values(self) -> bool:
        return self.method != "current" and (
            isinstance(self.window, int) or self.method == "median"
        )

    def clear(self) -> None:
        self.count = 0
        self.running = 0.0
        self.kept = []

    def extend(self, values: Sequence[float]) -> None:
        if self._keeps_values:
            self.kept.extend(values)
            if isinstance(self.window, int):
                del self.kept[: -self.window]
        elif self.method == "mean":
            # One by one, so that the sum does not depend on how often the rows are read, such as
            # for a checkpoint.
            self.running = reduce(add, values, self.running)
        elif self.method == "current":
            self.running = values[-1]
        else:
            before = (self.running,) if self.count else ()
            self.running = float(_METHODS[self.method]((*before, *values)))
        self.count += len(values)

    def compute(self) -> float:
        if self._keeps_values:
            return float(_METHODS[self.method](self.kept))
        if self.method == "mean":
            return self.running / self.count
        return self.running
