from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest

from orchestrator.stats.insight.robust import Floats
from orchestrator.stats.insight.staircase import rise

X = np.arange(20.0)


def noise(seed: int = 0) -> Floats:
    return 100 + 0.3 * np.random.default_rng(seed).standard_normal(20)


def criterion(y: Floats, jumps: int, rising: bool) -> float:
    """By least squares over all places of the jumps, with a column for each stretch and one for the line."""
    best = math.inf
    for places in combinations(range(1, 20), jumps):
        edges = [0, *places, 20]
        columns = [(np.arange(20) >= first) & (np.arange(20) < last) for first, last in pairwise(edges)]
        design = np.array([*columns, *([X] if rising else [])], dtype=float).T
        rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
        best = min(best, float(rest @ rest))
    return 20 * math.log(best / 20) + (1 + 2 * jumps + rising) * math.log(20)


@pytest.mark.parametrize("shape", [0 * X, 0.5 * X, 5.0 * (X > 7)], ids=["level", "rising", "a jump"])
def test_the_evidence_is_that_of_least_squares(shape: Floats) -> None:
    y = noise() + shape
    flat = min(criterion(y, jumps, False) for jumps in range(4))
    rising = min(criterion(y, jumps, True) for jumps in range(3))
    assert rise(X, y).evidence == pytest.approx(flat - rising, abs=1e-6)


def test_a_line_rises_and_its_slope_is_found_beside_a_jump() -> None:
    found = rise(X, noise() + 0.8 * X + 10 * (X > 11))
    assert found.evidence > 10
    assert found.slope == pytest.approx(0.8, rel=0.1)


@pytest.mark.parametrize("jumps", [1, 2, 3])
def test_jumps_are_no_rise(jumps: int) -> None:
    """At even distances, as like a line as they can be; evidence of less than 6 is not even strong."""
    steps = sum((np.where(20 * place / (jumps + 1) <= X, 5.0, 0.0) for place in range(1, jumps + 1)), start=np.zeros(20))
    assert rise(X, noise() + steps).evidence < 6


def test_values_that_are_all_the_same_rise_no_more_than_they_stand() -> None:
    assert rise(X, np.full(20, 7.0)).evidence < 0


def test_a_line_without_noise_rises() -> None:
    assert rise(X, 1e9 + 1e7 * X).evidence > 10
