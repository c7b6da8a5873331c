"""Statistics that a few wild values do not move, for series whose neighbours resemble each other."""

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
"""How much larger the error of a median is than that of a mean, for a normal distribution."""


def beyond_others(values: Floats) -> Floats:
    """What each column has above the median of all others, row by row; shape (rows, columns), at least two columns."""
    others = values.shape[1] - 1
    lower, upper = (others - 1) // 2, others // 2
    in_order = np.partition(values, sorted({lower, upper, upper + 1}), axis=1)

    def at(place: int) -> Floats:
        return np.where(values <= in_order[:, [place]], in_order[:, [place + 1]], in_order[:, [place]])

    return values - (at(lower) + at(upper)) / 2


def block_medians(values: Floats, most: int = 20, least_length: int = 4) -> Floats:
    """The medians of consecutive stretches of about the same length; rows are moments."""
    count = max(1, min(most, len(values) // least_length))
    return np.array([np.median(block, axis=0) for block in np.array_split(values, count)])


def median_error(blocks: Floats) -> Floats:
    """The standard error of the median over time, from the medians of blocks."""
    spread = _SIGMA * np.median(np.abs(blocks - np.median(blocks, axis=0)), axis=0)
    error: Floats = _MEDIAN * spread / math.sqrt(len(blocks))
    return error


def step_error(blocks: Floats) -> Floats:
    """The standard deviation of a block's median about a slow change, from the differences of neighbours."""
    spread: Floats = _SIGMA * np.median(np.abs(np.diff(blocks, axis=0)), axis=0) / math.sqrt(2)
    return spread


def sure(tests: int, blocks: int, error: float = 0.001) -> float:
    """How many standard errors a value must lie off for one false alarm in `1 / error` runs of so many tests each.

    Made larger where few blocks gave the standard error, which is then uncertain itself.
    """
    return NormalDist().inv_cdf(1 - error / max(tests, 1)) * (1 + 6 / blocks)


def lower_spread(values: Floats) -> float:
    """The spread of the lower half of a few values, in standard deviations: what stands out above does not count."""
    center = np.sort(values)[(len(values) - 1) // 2]
    return float(_SIGMA * np.median(center - values[values <= center]))


@dataclass(frozen=True)
class Slope:
    """Lines through series: the slope of each, and between which bounds it lies."""

    per_step: Floats
    """Theil and Sen's slope: the median of the slopes between all pairs."""
    low: Floats
    """Lower bound of its 95 % confidence interval."""
    high: Floats
    """Upper bound."""


def theil_sen(x: Floats, y: Floats) -> Slope:
    """Theil and Sen's slope with Sen's confidence interval, which rests on the order of the values alone.

    `x` and `y` have the shape (series, values), and each series its values in the order of a growing x.
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
    """The values of (series, moments), with what lies so many times as far off the median of five moments as is usual
    for its series put to that median.

    One or two wild values in a row go, what comes and stays does not. Source: Hampel's filter, with a wide limit.
    """
    around = np.pad(values, ((0, 0), (2, 2)), mode="edge")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(around, 5, axis=1), axis=2)
    off = np.abs(values - usual)
    return np.where(off > times * np.median(off, axis=1, keepdims=True), usual, values)


@dataclass(frozen=True)
class Period:
    """Something that comes again after so many moments."""

    length: int
    """Moments from one to the next."""
    phase: int
    """The first of them, modulo the length."""
    times: int
    """How often it came."""


def period_of(hits: NDArray[np.bool_], at: NDArray[np.int64], tests: int, error: float = 0.001) -> Period | None:
    """The period in which hits come, if their places could not be so by chance; at least five times over.

    `at` says when each moment was. Hits are folded at each possible length; four of five moments of a phase must be
    hits, and that many must be less likely than `error` among all lengths, phases and other `tests` made.
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
