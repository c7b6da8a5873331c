"""The probability that a configuration still wins, against SciPy and hand calculations."""

import numpy as np
import pytest
from scipy.stats import t as student

from orchestrator.sweeps.search.win_probability import compute_win_probabilities


def probability(*results: list[float]) -> float:
    """That of the second configuration against the first, where both and others have five seeds in
    the end."""
    return compute_win_probabilities(
        {number: dict(enumerate(own)) for number, own in enumerate(results)}, 0, 5
    )[1]


def test_probability_follows_student_t_over_remaining_seeds() -> None:
    best = [0.90, 0.94, 0.91, 0.93, 0.92]
    expected = student.sf(0.04 / np.sqrt(np.var(best, ddof=1) * 4 / 5), 4)
    assert probability(best, [0.88]) == pytest.approx(expected)
    few = [0.88, 0.98]
    some = best[:3]
    pooled = (2 * np.var(some, ddof=1) + np.var(few, ddof=1)) / 3
    variance = np.var(few, ddof=1) * 3 / 10 + pooled * 2 / 15
    expected = student.sf((np.mean(few) - np.mean(some)) / np.sqrt(variance), 3)
    assert probability(few, some) == pytest.approx(expected), (
        "the first varies more than the pooled variance"
    )
    assert probability([0.9], [0.1]) == 1, "one seed has no variance"


def test_paired_seeds_reduce_the_variance() -> None:
    results = np.array([[0.90, 0.50, 0.70], [0.80, 0.41, 0.60], [0.87, 0.48, 0.66]])
    assert probability(*results[:2].tolist()) > 0.1, "two degrees of freedom are too few"
    residuals = results - results.mean(1, keepdims=True) - results.mean(0) + results.mean()
    differences = results[0] - results[1]
    variance = max(2 * (residuals**2).sum() / 4, np.var(differences, ddof=1)) * 2 / 15
    assert probability(*results.tolist()) == pytest.approx(
        student.sf(differences.mean() / np.sqrt(variance), 4)
    )
