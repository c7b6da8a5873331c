"""Tests of differences, against the printed table of Student's t and counts by hand.

At a level of 0.01, a two-sided test compares with the quantile of 0.995, which is 4.604 for 4 degrees
of freedom and 9.925 for 2.
"""

import math

import numpy as np
import pytest

from orchestrator.tables.compared_values import Verdict
from orchestrator.tables.configurations import Configuration
from orchestrator.tables.significance import is_significant, run_paired_test, run_welch_test

SPREAD = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
"""Its mean has a standard error of sqrt(2.5 / 5) = 0.7071, so 4.604 of them are 3.256."""


def configuration(mean: float, std: float, n: int = 3) -> Configuration:
    return Configuration(
        0, (), n=n, mean=mean, std=std, half_width=0, score=mean, failed=0, stopped=0
    )


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
@pytest.mark.parametrize(
    ("mean", "verdict"), [(3.25, "noise"), (3.26, "more"), (-3.26, "less"), (0.0, "noise")]
)
def test_paired_test_agrees_with_the_table(mean: float, verdict: Verdict, scale: float) -> None:
    assert run_paired_test((SPREAD + mean) * scale) == verdict


def test_paired_test_of_constant_differences() -> None:
    assert run_paired_test(np.zeros(5)) == "noise"
    assert run_paired_test(np.full(5, -0.5)) == "less"


@pytest.mark.parametrize("last", [math.inf, -math.inf, math.nan])
def test_paired_test_of_a_difference_that_is_no_number_is_unknown(last: float) -> None:
    assert run_paired_test(np.array([1, 2, 3, 4, last])) == "unknown"


def test_paired_test_needs_five_pairs() -> None:
    assert run_paired_test(np.full(4, 1.0)) == "unknown"


@pytest.mark.parametrize("scale", [1.0, 1e-100, 1e90])
@pytest.mark.parametrize(
    ("difference", "verdict"), [(3.75, "noise"), (3.77, "more"), (-3.77, "less")]
)
def test_welch_test_of_equal_spreads_agrees_with_the_table(
    difference: float, verdict: Verdict, scale: float
) -> None:
    """Two times three trials have 4 degrees of freedom; 4.604 standard errors sqrt(2 / 3) are
    3.759."""
    first = configuration(0, scale)
    assert run_welch_test(first, configuration(difference * scale, scale)) == verdict


def test_welch_test_of_unequal_spreads_agrees_with_the_table() -> None:
    """Beside a spread of 1e86, one of 1 does not count: 2 degrees of freedom, and 9.925 standard
    errors of 1e86 / sqrt(3) are 5.730e86."""
    first = configuration(1e90, 1e86)
    assert run_welch_test(first, configuration(0, 1)) == "less"
    first = configuration(0, 1e86)
    assert run_welch_test(first, configuration(5.72e86, 1)) == "noise"
    assert run_welch_test(first, configuration(5.74e86, 1)) == "more"


def test_welch_test_without_spread() -> None:
    assert run_welch_test(configuration(1, 0), configuration(2, 0)) == "more"
    assert run_welch_test(configuration(1, 0), configuration(1, 0)) == "noise"


def test_welch_test_needs_two_trials_each() -> None:
    assert run_welch_test(configuration(1, 1), configuration(2, math.nan, n=1)) == "unknown"
    assert run_welch_test(None, configuration(2, 1)) == "unknown"


def test_permutation_test_agrees_with_a_count() -> None:
    """Of the 252 splits of ten numbers into halves, 2 differ as much as the lower half from the
    upper: 0.8%. Of the 20 splits of six numbers, 2: 10%."""
    assert is_significant(np.arange(5.0), np.arange(5.0, 10.0), np.mean)
    assert not is_significant(np.arange(3.0), np.arange(3.0, 6.0), np.mean)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_difference_that_is_no_number_is_not_significant() -> None:
    first = np.array([1.0, math.nan])
    assert not is_significant(first, np.array([2.0, 3.0]), np.mean)
    assert not is_significant(np.full(5, math.inf), np.full(5, math.inf), np.mean)
