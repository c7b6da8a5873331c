"""Axes of charts: ranges, positions and ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.stats.aggregate import quantities

_TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_SIZES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("bytes", 1.0))
LOGARITHMIC_FROM = 100.0
"""Least ratio of the largest to the smallest value for a logarithmic axis."""
LABELS = 5
"""Number of ticks, about."""


@dataclass(frozen=True)
class Axis:
    """A range of numbers, with `low` at position 0 and `high` at 1."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    """Values and labels, ascending."""
    logarithmic: bool = False

    @property
    def tick_positions(self) -> NDArray[np.float64]:
        return self.positions([value for value, _ in self.ticks])

    def positions(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return the positions of values, 0 to 1; NaN for what the axis cannot show."""
        numbers = np.asarray(values, dtype=float)
        if self.logarithmic:
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.where(numbers > 0, np.log(numbers), np.nan)
            return (logs - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return np.where(np.isfinite(numbers), (numbers - self.low) / (self.high - self.low), np.nan)


def axis(name: str, values: ArrayLike, *, from_zero: bool = False, logarithmic: bool | None = None) -> Axis:
    """Return the axis for a column's finite values.

    With `logarithmic` None, positive values whose ratio reaches LOGARITHMIC_FROM are logarithmic, but never bytes.
    """
    numbers = np.asarray(values, dtype=float)
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if logarithmic is None:
        logarithmic = not from_zero and quantities.unit(name) != "bytes" and low > 0 and high / low >= LOGARITHMIC_FROM
    if logarithmic and low > 0 and high > low:
        return Axis(low, high, _decades(name, low, high), logarithmic=True)
    low, high = _widened(low, high)
    return Axis(low, high, _steps(name, low, high))


def integer_axis(name: str, values: ArrayLike) -> Axis:
    """Return an axis of whole numbers, such as steps."""
    linear = axis(name, values, logarithmic=False)
    ticks = tuple(tick for tick in linear.ticks if float(tick[0]).is_integer())
    return Axis(linear.low, linear.high, ticks or ((linear.low, quantities.number(linear.low)),))


def category_axis(names: Sequence[str], most: int = 8) -> Axis:
    """Return an axis of names with equal widths, of which at most `most` are labelled."""
    every = max(1, math.ceil(len(names) / most))
    ticks = tuple((float(number), names[number]) for number in range(0, len(names), every))
    return Axis(-0.5, max(len(names), 1) - 0.5, ticks)


def _widened(low: float, high: float) -> tuple[float, float]:
    if high > low:
        return low, high
    margin = abs(low) * 0.5 or 0.5
    return low - margin, high + margin


def _steps(name: str, low: float, high: float) -> tuple[tuple[float, str], ...]:
    label, size = _scale(name, max(abs(low), abs(high)))
    step = _round((high - low) / size / LABELS)
    first, last = math.ceil(low / size / step - 1e-9), math.floor(high / size / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return tuple((index * step * size, _labelled(index * step, decimals, label)) for index in range(first, last + 1))


def _labelled(value: float, decimals: int, label: str) -> str:
    text = quantities.number(value) if abs(value) >= 1e4 or decimals > 6 else f"{value:.{decimals}f}"
    return f"{text} {label}".rstrip() if label != "/s" else f"{text}/s"


def _round(step: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(nice for nice in (1, 2, 5, 10) if nice * power >= step * (1 - 1e-9))


def _decades(name: str, low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Return powers of ten as ticks; if there are few, also twice and five times each."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / LABELS))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    values = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
    return tuple(
        (value, quantities.text(name, value)) for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    )


def _scale(name: str, largest: float) -> tuple[str, float]:
    """Return the unit of an axis up to the largest value, and its size in the column's unit."""
    steps = {"s": _TIMES, "bytes": _SIZES}.get(quantities.unit(name))
    if steps is None:
        return quantities.unit(name), 1.0
    return next((step for step in steps if abs(largest) >= step[1]), steps[-1] if largest else steps[-2])
