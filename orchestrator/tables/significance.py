"""Tests of whether differences between series of numbers are noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orchestrator.tables.configurations import Configuration
from orchestrator.tables.student_t import compute_tail_probability

SIGNIFICANCE_LEVEL = 0.01
"""Rate of false differences between equal runs, per compared number."""
N_ROUNDS = 10
"""Permutations are drawn in rounds to bound their memory."""
PERMUTATIONS_PER_ROUND = 200
MIN_PAIRS = 5
"""Minimum number of paired differences for a test."""

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


def describe_direction(difference: float) -> Literal["less", "more"]:
    return "more" if difference > 0 else "less"


def is_significant(first: Series, other: Series, summary: Callable[..., Any]) -> bool:
    """Run a permutation test: return True if fewer than SIGNIFICANCE_LEVEL of the permutations
    differ as much.

    `summary` is called with an `axis`.
    """
    random = np.random.default_rng(0)
    both = np.concatenate([first, other])
    difference = abs(summary(first, axis=0) - summary(other, axis=0))

    n_as_large = 0
    for _ in range(N_ROUNDS):
        permutations = random.permuted(np.tile(both, (PERMUTATIONS_PER_ROUND, 1)), axis=1)
        firsts = summary(permutations[:, : len(first)], axis=1)
        others = summary(permutations[:, len(first) :], axis=1)
        # The tolerance is for rounding errors of equal differences.
        is_as_large = np.abs(firsts - others) >= difference * (1 - 1e-9)
        n_as_large += int(np.count_nonzero(is_as_large))
    share = (n_as_large + 1) / (N_ROUNDS * PERMUTATIONS_PER_ROUND + 1)
    return share < SIGNIFICANCE_LEVEL


# T tests


def run_paired_test(differences: Series) -> Verdict:
    """Test whether the mean of paired differences is 0."""
    count = len(differences)
    if count < MIN_PAIRS:
        return "unknown"
    error = float(differences.std(ddof=1)) / sqrt(count)
    return _run_t_test(float(differences.mean()), error, count - 1)


def run_welch_test(first: Configuration | None, other: Configuration | None) -> Verdict:
    """Compare two means by Welch's t test (1947), with integer degrees of freedom."""
    if first is None or other is None:
        return "unknown"
    if min(first.n, other.n) < 2 or isnan(first.std) or isnan(other.std):
        return "unknown"

    first_part = first.std**2 / first.n
    other_part = other.std**2 / other.n
    variance = first_part + other_part
    squares = first_part**2 / (first.n - 1) + other_part**2 / (other.n - 1)
    freedom = int(variance**2 / squares) if squares else 1
    return _run_t_test(other.mean - first.mean, sqrt(variance), max(1, freedom))


def _run_t_test(difference: float, error: float, freedom: int) -> Verdict:
    """Return the direction of a difference that its standard error hardly explains, otherwise
    `noise`."""
    if difference == 0:
        return "noise"
    if error == 0:
        return describe_direction(difference)
    probability = 2 * compute_tail_probability(abs(difference) / error, freedom)
    return describe_direction(difference) if probability < SIGNIFICANCE_LEVEL else "noise"
