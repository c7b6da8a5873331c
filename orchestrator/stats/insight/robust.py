"""Statistics that a few wild values do not move, for series whose neighbours resemble each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SIGMA = 1 / NormalDist().inv_cdf(0.75)
"""Standard deviations of a normal distribution in one median absolute deviation."""
_MEDIAN = math.sqrt(math.pi / 2)
"""How much larger the error of a median is than that of a mean, for a normal distribution."""


def without_own(values: Floats) -> Floats:
    """For each column the median of all other columns, row by row; shape (rows, columns), at least two columns."""
    order = np.argsort(np.argsort(values, axis=1, kind="stable"), axis=1, kind="stable")
    in_order = np.sort(values, axis=1)
    others = values.shape[1] - 1

    def at(place: int) -> Floats:
        return np.where(order <= place, in_order[:, [place + 1]], in_order[:, [place]])

    return (at((others - 1) // 2) + at(others // 2)) / 2


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
    """A line through a series: its slope, between which bounds it lies, and whether it is there at all."""

    per_step: float
    """Theil and Sen's slope: the median of the slopes between all pairs."""
    low: float
    """Lower bound of its 95 % confidence interval."""
    high: float
    """Upper bound."""


def theil_sen(x: Floats, y: Floats) -> Slope:
    """Theil and Sen's slope with Sen's confidence interval, which rests on the order of the values alone.

    Source: Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.
    """
    slopes = np.sort([(y[j] - y[i]) / (x[j] - x[i]) for i, j in combinations(range(len(x)), 2) if x[j] > x[i]])
    count = len(x)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    reach = NormalDist().inv_cdf(0.975) * deviation
    low = max(0, math.floor((len(slopes) - reach) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + reach) / 2))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


@dataclass(frozen=True)
class Period:
    """Something that comes again after so many moments."""

    length: int
    """Moments from one to the next."""
    phase: int
    """The first of them, modulo the length."""
    times: int
    """How often it came."""


def period_of(hits: NDArray[np.bool_], tests: int, error: float = 0.001) -> Period | None:
    """The period in which hits come, if their places could not be so by chance; at least five times over.

    Hits are folded at each possible length; four of five moments of a phase must be hits, and that many must be less
    likely than `error` among all lengths, phases and other `tests` made.
    """
    places = np.flatnonzero(hits)
    rate, longest = len(places) / len(hits), len(hits) // 5
    if len(places) < 5 or rate > 0.6:
        return None
    bound = math.log(error / (tests * longest**2 / 2))
    best: Period | None = None
    for length in range(2, longest + 1):
        counts = np.bincount(places % length, minlength=length)
        phase = int(counts.argmax())
        times, of = int(counts[phase]), len(range(phase, len(hits), length))
        if times < 5 or times < 0.8 * of or math.log(math.comb(of, times)) + times * math.log(rate) > bound:
            continue
        if best is None or times > best.times:
            best = Period(length, phase, times)
    return best
