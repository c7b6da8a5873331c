"""Robust statistics of autocorrelated series."""

from __future__ import annotations

import math
from dataclasses import dataclass
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


def block_medians(values: Floats, most: int = 20, least_length: int = 4) -> Floats:
    """Return the medians of consecutive blocks of rows."""
    count = max(1, min(most, len(values) // least_length))
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


def significant_errors(tests: int, blocks: int, error: float = 0.001) -> float:
    """Return the number of standard errors for one false alarm in `1 / error` runs, each of `tests` tests.

    It is larger for few blocks, since their standard error is uncertain.
    """
    return NormalDist().inv_cdf(1 - error / max(tests, 1)) * (1 + 6 / blocks)


def lower_spread(values: Floats) -> float:
    """Return the standard deviation of the lower half of a few values, robust against high outliers."""
    center = np.sort(values)[(len(values) - 1) // 2]
    return float(_SIGMA * np.median(center - values[values <= center]))


@dataclass(frozen=True)
class Slope:
    """Slopes of lines through series, with bounds."""

    per_step: Floats
    """Theil-Sen slope: the median of the slopes between all pairs."""
    low: Floats
    """Lower bound of its 95 % confidence interval."""
    high: Floats
    """Upper bound."""


def theil_sen(x: Floats, y: Floats) -> Slope:
    """Return the Theil-Sen slope with Sen's confidence interval; `x` and `y` are (series, values), sorted by x.

    Source: Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.
    """
    count = x.shape[1]
    earlier, later = np.triu_indices(count, 1)
    slopes = np.sort((y[:, later] - y[:, earlier]) / (x[:, later] - x[:, earlier]), axis=1)
    pairs = len(earlier)
    reach = NormalDist().inv_cdf(0.975) * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low, high = max(0, math.floor((pairs - reach) / 2)), min(pairs - 1, math.ceil((pairs + reach) / 2))
    return Slope(np.median(slopes, axis=1), slopes[:, low], slopes[:, high])


def without_spikes(values: Floats, times: float = 20.0) -> Floats:
    """Replace outliers of (series, moments) by the median of five moments: Hampel's filter with a wide limit.

    It removes one or two outliers in a row, and keeps steps.
    """
    around = np.pad(values, ((0, 0), (2, 2)), mode="edge")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(around, 5, axis=1), axis=2)
    off = np.abs(values - usual)
    return np.where(off > times * np.median(off, axis=1, keepdims=True), usual, values)


@dataclass(frozen=True)
class Period:
    """A periodic event."""

    length: int
    """Moments between events."""
    phase: int
    """Place of the events, modulo the length."""
    times: int
    """Number of events."""


def period_of(hits: NDArray[np.bool_], at: NDArray[np.int64], tests: int, error: float = 0.001) -> Period | None:
    """Return the period of hits, if at least five are unlikely to be periodic by chance.

    `at` is the time of each moment. For some length and phase, four of five moments must be hits, which by chance must
    be less likely than `error` over all lengths, phases and `tests`.
    """
    places = at[hits]
    rate, longest = len(places) / len(hits), len(hits) // 5
    if len(places) < 5 or rate > 0.6:
        return None
    bound = math.log(error / (tests * longest**2 / 2))
    best: Period | None = None
    for length in range(2, longest + 1):
        counts = np.bincount(places % length, minlength=length)
        phase = int(counts.argmax())
        times = int(counts[phase])
        if times < 5:
            continue
        of = int(np.count_nonzero(at % length == phase))
        if times < 0.8 * of or math.log(math.comb(of, times)) + times * math.log(rate) > bound:
            continue
        if best is None or times > best.times:
            best = Period(length, phase, times)
    return best
