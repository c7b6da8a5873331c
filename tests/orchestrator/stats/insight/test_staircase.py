from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from orchestrator.stats.insight.robust_statistics import Floats
from orchestrator.stats.insight.staircase import autocorrelation, rises

COUNT = 14
X = np.arange(40.0)


def noise(series: int, moments: int, correlation: float, seed: int = 0) -> Floats:
    """A first-order autoregression of standard deviation 0.3, about 100."""
    draw = np.random.default_rng(seed)
    values = np.empty((series, moments))
    values[:, 0] = draw.standard_normal(series)
    for place in range(1, moments):
        values[:, place] = correlation * values[:, place - 1] + math.sqrt(1 - correlation**2) * draw.standard_normal(
            series
        )
    return 100 + 0.3 * values


def criterion(y: Floats, correlation: float, jumps: int, rising: bool) -> float:
    """By generalised least squares, with the whole covariance of the noise, over all places of the jumps."""
    x = np.arange(COUNT)
    covariance = correlation ** np.abs(x[:, None] - x) / (1 - correlation**2)
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    best = math.inf
    for places in combinations(range(1, COUNT), jumps):
        design = np.array([np.ones(COUNT), *(x >= place for place in places), *([x] if rising else [])], dtype=float).T
        rest = root @ y - root @ design @ np.linalg.lstsq(root @ design, root @ y, rcond=None)[0]
        best = min(best, float(rest @ rest))
    return COUNT * math.log(best / COUNT) - math.log(1 - correlation**2) + (1 + 2 * jumps + rising) * math.log(COUNT)


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_evidence_is_that_of_generalised_least_squares(correlation: float) -> None:
    x = np.arange(COUNT)
    y = noise(3, COUNT, correlation) + np.array([0 * x, 0.5 * x, 5.0 * (x > 7)])
    found = rises(y, correlation).evidence
    for own, evidence in zip(y, found, strict=True):
        flat = min(criterion(own, correlation, jumps, False) for jumps in range(4))
        rising = min(criterion(own, correlation, jumps, True) for jumps in range(4))
        assert evidence == pytest.approx(flat - rising, abs=1e-6)


def test_a_line_rises_and_its_slope_is_found_beside_a_jump() -> None:
    found = rises(noise(1, 40, 0.5) + 0.8 * X + 10 * (X > 11), 0.5)
    assert found.evidence[0] > 10
    assert found.slope[0] == pytest.approx(0.8, rel=0.1)


@pytest.mark.parametrize("jumps", [1, 2, 3])
def test_jumps_are_no_rise(jumps: int) -> None:
    """At even distances, as like a line as they can be; evidence of less than 6 is not even strong."""
    steps = sum(
        (np.where(40 * place / (jumps + 1) <= X, 5.0, 0.0) for place in range(1, jumps + 1)), start=np.zeros(40)
    )
    assert rises(noise(20, 40, 0.5) + steps, 0.5).evidence.max() < 6


def test_what_wanders_is_no_rise() -> None:
    """Noise of which each moment is the last one and something new goes far, and nowhere in particular."""
    wandering = 100 + np.cumsum(np.random.default_rng(0).standard_normal((20, 80)), axis=1)
    assert rises(wandering, autocorrelation(wandering)).evidence.max() < 10


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_resemblance_of_noise_is_found_beside_jumps_and_rises(correlation: float) -> None:
    x = np.arange(60.0)
    shapes = np.array([0 * x, 0.05 * x, 2.0 * (x > 20), 1.0 * (x > 30) + 0.05 * x])
    assert autocorrelation(noise(40, 60, correlation) + np.tile(shapes, (10, 1))) == pytest.approx(
        correlation, abs=0.15
    )


def test_values_that_are_all_the_same_rise_no_more_than_they_stand() -> None:
    assert rises(np.full((1, 20), 7.0), 0.0).evidence[0] < 0


def test_a_line_without_noise_rises() -> None:
    assert rises(1e9 + 1e7 * np.arange(20.0)[None], 0.0).evidence[0] > 10
