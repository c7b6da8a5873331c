"""Robust statistics of autocorrelated series."""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SIGMA = 1 / NormalDist().inv_cdf(0.75)
"""Ratio of the standard deviation to the median absolute deviation of a normal distribution."""
_MEDIAN = math.sqrt(math.pi / 2)
"""Ratio of the standard error of the median to that of the mean, for a normal distribution."""


def subtract_median_of_others(values: Floats) -> Floats:
    """Subtract from each column the median of the other columns, row by row. There are at least two
    columns."""
    others = values.shape[1] - 1
    lower = (others - 1) // 2
    upper = others // 2
    in_order = np.partition(values, sorted({lower, upper, upper + 1}), axis=1)

    def pick(index: int) -> Floats:
        """Return the number at a place among the others: the next one if its own is before."""
        is_before = values <= in_order[:, [index]]
        return np.where(is_before, in_order[:, [index + 1]], in_order[:, [index]])

    return values - (pick(lower) + pick(upper)) / 2


def compute_block_medians(values: Floats) -> Floats:
    """Return the medians of at most 20 consecutive blocks of at least four rows."""
    count = max(1, min(20, len(values) // 4))
    return np.array([np.median(block, axis=0) for block in np.array_split(values, count)])


def compute_quarter_medians(blocks: Floats) -> tuple[Floats, Floats]:
    """Return the medians of the first and of the last quarter of the blocks."""
    count = _count_quarter(blocks)
    first: Floats = np.median(blocks[:count], axis=0)
    last: Floats = np.median(blocks[-count:], axis=0)
    return first, last


def _count_quarter(blocks: Floats) -> int:
    return max(1, len(blocks) // 4)


def estimate_deviation(values: Floats) -> Floats:
    """Estimate the standard deviation of each column, whatever its outliers."""
    deviation: Floats = _SIGMA * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    return deviation


def estimate_median_error(blocks: Floats) -> Floats:
    """Estimate the standard error of the median from the medians of blocks."""
    error: Floats = _MEDIAN * estimate_deviation(blocks) / math.sqrt(len(blocks))
    return error


def estimate_quarter_change_error(blocks: Floats) -> Floats:
    """Estimate the standard error of the change between the medians of the first and of the last
    quarter of the blocks."""
    error: Floats = estimate_block_spread(blocks) * math.sqrt(2 / _count_quarter(blocks))
    return _MEDIAN * error


def estimate_block_spread(blocks: Floats) -> Floats:
    """Estimate the standard deviation of block medians around a slow trend. Differences of neighbors
    tell it, because the trend would inflate any other estimate."""
    spread: Floats = _SIGMA * np.median(np.abs(np.diff(blocks, axis=0)), axis=0) / math.sqrt(2)
    return spread


def compute_significance_threshold(tests: int, blocks: int) -> float:
    """Return the threshold, in standard errors, for one false alarm in a thousand runs with `tests`
    tests each.

    It is higher for few blocks, because their standard error is uncertain.
    """
    return NormalDist().inv_cdf(1 - 0.001 / max(tests, 1)) * (1 + 120 / blocks**2)


def estimate_lower_spread(values: Floats) -> float:
    """Estimate the standard deviation of a few values from their lower half, so that high outliers
    do not matter."""
    center = np.sort(values)[(len(values) - 1) // 2]
    return float(_SIGMA * np.median(center - values[values <= center]))
