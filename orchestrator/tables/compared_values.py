"""Values of several runs or sweeps, each compared with the first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Series = NDArray[np.float64]
Verdict = Literal["less", "more", "noise", "unknown"]
"""What a test says of a difference: its direction, that it may be noise, or that there are too few
values to tell."""
Classify = Callable[[float, Series, Series], Verdict]
"""Returns the verdict on the difference of two values. Each value has a series that shows how much
it fluctuates."""


@dataclass(frozen=True)
class ValueChange:
    """The change of a value from that of the first run or sweep."""

    value: float | None
    first: float | None
    verdict: Verdict | None
    """None for the first itself."""

    @property
    def difference(self) -> float | None:
        """The value minus the first; None without two finite values to compare."""
        if self.verdict is None or self.value is None or self.first is None:
            return None
        difference = self.value - self.first
        return difference if isfinite(difference) else None

    @property
    def is_undecided(self) -> bool:
        """Whether the values differ, and there are too few to tell the difference from noise."""
        return self.verdict == "unknown" and bool(self.difference)


@dataclass(frozen=True)
class ComparedValues:
    """A value of each run or sweep, and how it differs from the first."""

    values: list[float | None]
    """None if a run or sweep did not measure it."""
    findings: list[Verdict | None]
    """Verdict on each; None for the first, with which the others are compared."""

    @property
    def changes(self) -> list[ValueChange]:
        """The change of each value, that of the first included."""
        return [
            ValueChange(value, self.values[0], verdict)
            for value, verdict in zip(self.values, self.findings, strict=True)
        ]


def compare_with_first(
    values: Sequence[float | None], spreads: Sequence[Series], classify: Classify
) -> ComparedValues:
    """Return the values, and a verdict on each but the first.

    Args:
        values: One value per run or sweep; None if it was not measured.
        spreads: The series that shows how much each value fluctuates.
        classify: Makes the verdict on a difference from the first.
    """
    findings: list[Verdict | None] = [None]
    for value, spread in zip(values[1:], spreads[1:], strict=True):
        verdict: Verdict = "unknown"
        if value is not None and values[0] is not None and isfinite(value - values[0]):
            verdict = classify(value - values[0], spreads[0], spread)
        findings.append(verdict)
    return ComparedValues(list(values), findings)


def summarize(series: Sequence[Series], summary: Callable[[Series], Any]) -> list[float | None]:
    """Return a number for each series; None for an empty one."""
    return [float(summary(numbers)) if len(numbers) else None for numbers in series]


def make_verdict(difference: float, *, is_real: bool) -> Verdict:
    """Return the direction of a difference; `noise` if it is not real."""
    if not is_real:
        return "noise"
    return "more" if difference > 0 else "less"


def drop_unmeasured(compared: Mapping[str, ComparedValues]) -> dict[str, ComparedValues]:
    """Return the entries in which a value is known."""
    measured = {}
    for name, entry in compared.items():
        if any(value is not None for value in entry.values):
            measured[name] = entry
    return measured


def get_numbers(table: pd.DataFrame, name: str) -> Series:
    return table[name].dropna().to_numpy(dtype=float) if name in table else np.empty(0)
