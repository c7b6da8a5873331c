"""Axes: which stretch of numbers a chart shows, where each lies on it, and which are labelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.report import units
from orchestrator.stats.aggregate import quantities

LOGARITHMIC_FROM = 100.0
"""From how many times the smallest value the largest has to be for a logarithmic axis."""
LABELS = 5
"""About how many values are labelled."""


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers from `low` to `high`, which lie at 0 and 1."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    """Values and their labels, ascending."""
    logarithmic: bool = False

    @property
    def tick_positions(self) -> NDArray[np.float64]:
        """Where the ticks lie."""
        return self.positions([value for value, _ in self.ticks])

    def positions(self, values: ArrayLike) -> NDArray[np.float64]:
        """Where values lie: 0 to 1, NaN for what the axis cannot show."""
        numbers = np.asarray(values, dtype=float)
        if self.logarithmic:
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.where(numbers > 0, np.log(numbers), np.nan)
            return (logs - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return np.where(np.isfinite(numbers), (numbers - self.low) / (self.high - self.low), np.nan)


def axis(name: str, values: ArrayLike, *, from_zero: bool = False, logarithmic: bool | None = None) -> Axis:
    """The axis for the finite ones of a column's values, whose name tells their unit.

    `logarithmic` None leaves it to the values: all above zero, and the largest LOGARITHMIC_FROM times the smallest;
    bytes are told by powers of two and never logarithmic.
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
    """An axis of whole numbers, such as steps: no label lies between two of them."""
    found = axis(name, values, logarithmic=False)
    ticks = tuple(tick for tick in found.ticks if float(tick[0]).is_integer())
    return Axis(found.low, found.high, ticks or ((found.low, quantities.number(found.low)),))


def category_axis(names: Sequence[str], most: int = 8) -> Axis:
    """An axis of things that are no numbers: each has a stretch of the same width, and at most so many are labelled."""
    every = max(1, math.ceil(len(names) / most))
    ticks = tuple((float(number), names[number]) for number in range(0, len(names), every))
    return Axis(-0.5, max(len(names), 1) - 0.5, ticks)


def _widened(low: float, high: float) -> tuple[float, float]:
    """A stretch of some length, also around a single value."""
    if high > low:
        return low, high
    margin = abs(low) * 0.5 or 0.5
    return low - margin, high + margin


def _steps(name: str, low: float, high: float) -> tuple[tuple[float, str], ...]:
    label, size = units.scale(name, max(abs(low), abs(high)))
    step = _round((high - low) / size / LABELS)
    first, last = math.ceil(low / size / step - 1e-9), math.floor(high / size / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return tuple((index * step * size, _labelled(index * step, decimals, label)) for index in range(first, last + 1))


def _labelled(value: float, decimals: int, label: str) -> str:
    text = quantities.number(value) if abs(value) >= 1e4 or decimals > 6 else f"{value:.{decimals}f}"
    return f"{text} {label}".rstrip() if label != "/s" else f"{text}/s"


def _round(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(nice for nice in (1, 2, 5, 10) if nice * power >= step * (1 - 1e-9))


def _decades(name: str, low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Powers of ten; where there are few, also twice and five times of each."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / LABELS))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    values = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
    return tuple(
        (value, quantities.text(name, value)) for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    )
