"""Tests of whether differences between series of numbers are noise."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIGNIFICANCE_LEVEL = 0.01
"""Rate of false differences between equal runs, per compared number."""
N_ROUNDS = 10
"""Permutations are drawn in rounds to bound their memory."""
PERMUTATIONS_PER_ROUND = 200

Series = NDArray[np.float64]
Classify = Callable[[float, Series, Series], str]
"""Returns a finding on the difference of two values: `less`, `more`, `noise`, or `unknown`. Each
value has a series that shows how much it fluctuates."""


def compare_with_first(
    values: Sequence[float | None], spreads: Sequence[Series], classify: Classify
) -> dict[str, list[Any]]:
    """Return the values, and a finding on each; None for the first.

    Args:
        values: One value per run or sweep; None if it was not measured.
        spreads: The series that shows how much each value fluctuates.
        classify: Makes the finding on the difference from the first.
    """
    findings: list[str | None] = [None]
    for value, spread in zip(values[1:], spreads[1:], strict=True):
        finding = "unknown"
        if value is not None and values[0] is not None and isfinite(value - values[0]):
            finding = classify(value - values[0], spreads[0], spread)
        findings.append(finding)
    return {"values": list(values), "findings": findings}


def summarize(series: Sequence[Series], summary: Callable[[Series], Any]) -> list[float | None]:
    """Return a number for each series; None for an empty one."""
    return [float(summary(numbers)) if len(numbers) else None for numbers in series]


def describe_direction(difference: float) -> str:
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
