"""Robust statistics of autocorrelated series."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SIGMA = 1 / NormalDist().inv_cdf(0.75)
"""Standard deviations of a normal distribution in one median absolute deviation."""
_MEDIAN = math.sqrt(math.pi / 2)
"""Error of a median over that of a mean, for a normal distribution."""


def beyond_others(values: Floats) -> Floats:
    """Subtract from each column the median of all others, row by row; there are at least two columns."""
    others = values.shape[1] - 1
    lower, upper = (others - 1) // 2, others // 2
    in_order = np.partition(values, sorted({lower, upper, upper + 1}), axis=1)

    def at(place: int) -> Floats:
        return np.where(values <= in_order[:, [place]], in_order[:, [place + 1]], in_order[:, [place]])

    return values - (at(lower) + at(upper)) / 2


def block_medians(values: Floats) -> Floats:
    """Return the medians of at most 20 consecutive blocks of at least four rows."""
    count = max(1, min(20, len(values) // 4))
    return np.array([np.median(block, axis=0) for block in np.array_split(values, count)])


def median_error(blocks: Floats) -> Floats:
    """Return the standard error of the median, from the medians of blocks."""
    spread = _SIGMA * np.median(np.abs(blocks - np.median(blocks, axis=0)), axis=0)
    error: Floats = _MEDIAN * spread / math.sqrt(len(blocks))
    return error


def step_error(blocks: Floats) -> Floats:
    """Return the standard deviation of block medians around a slow change, from differences of neighbours."""
    spread: Floats = _SIGMA * np.median(np.abs(np.diff(blocks, axis=0)), axis=0) / math.sqrt(2)
    return spread


def significant_errors(tests: int, blocks: int) -> float:
    """Return the number of standard errors for one false alarm in a thousand runs, each of `tests` tests.

    It is larger for few blocks, since their standard error is uncertain.
    """
    return NormalDist().inv_cdf(1 - 0.001 / max(tests, 1)) * (1 + 6 / blocks)


def lower_spread(values: Floats) -> float:
    """Return the standard deviation of the lower half of a few values, robust against high outliers."""
    center = np.sort(values)[(len(values) - 1) // 2]
    return float(_SIGMA * np.median(center - values[values <= center]))
