"""Tests of whether differences between series of numbers are noise."""

from collections.abc import Callable
from math import isnan, sqrt
from typing import Any

import numpy as np

from orchestrator.tables.compared_values import Series, Verdict, make_verdict
from orchestrator.tables.configurations import Configuration
from orchestrator.tables.student_t import compute_tail_probability

SIGNIFICANCE_LEVEL = 0.01
"""Rate of false differences between equal runs, per compared number."""
N_ROUNDS = 10
"""Permutations are drawn in rounds to bound their memory."""
PERMUTATIONS_PER_ROUND = 200
MIN_PAIRS = 5
"""Minimum number of paired differences for a test."""


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
        # The tolerance is for rounding errors of equal differences. NaN is never smaller.
        is_smaller = np.abs(firsts - others) < difference * (1 - 1e-9)
        n_as_large += int(np.count_nonzero(~is_smaller))
    share = (n_as_large + 1) / (N_ROUNDS * PERMUTATIONS_PER_ROUND + 1)
    return share < SIGNIFICANCE_LEVEL


# T tests


def run_paired_test(differences: Series) -> Verdict:
    """Test whether the mean of paired differences is 0."""
    count = len(differences)
    if count < MIN_PAIRS or not np.isfinite(differences).all():
        return "unknown"
    # The square of a large number would overflow.
    scaled = differences / (np.abs(differences).max() or 1.0)
    error = float(scaled.std(ddof=1)) / sqrt(count)
    return _run_t_test(float(scaled.mean()), error, count - 1)


def run_welch_test(first: Configuration | None, other: Configuration | None) -> Verdict:
    """Compare two means by Welch's t test (1947), with integer degrees of freedom."""
    if first is None or other is None:
        return "unknown"
    if min(first.n, other.n) < 2 or isnan(first.std) or isnan(other.std):
        return "unknown"

    # The square of a large number would overflow.
    scale = max(first.std, other.std) or 1.0
    first_part = (first.std / scale) ** 2 / first.n
    other_part = (other.std / scale) ** 2 / other.n
    variance = first_part + other_part
    squares = first_part**2 / (first.n - 1) + other_part**2 / (other.n - 1)
    freedom = int(variance**2 / squares) if squares else 1
    difference = (other.mean - first.mean) / scale
    return _run_t_test(difference, sqrt(variance), max(1, freedom))


def _run_t_test(difference: float, error: float, freedom: int) -> Verdict:
    """Return the direction of a difference that its standard error hardly explains, otherwise
    `noise`."""
    if difference == 0:
        return "noise"
    if error == 0:
        return make_verdict(difference, is_real=True)
    probability = 2 * compute_tail_probability(abs(difference) / error, freedom)
    return make_verdict(difference, is_real=probability < SIGNIFICANCE_LEVEL)
