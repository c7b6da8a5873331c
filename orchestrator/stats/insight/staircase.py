"""Staircases: whether series rise all the time, or in jumps with nothing between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from orchestrator.stats.insight.robust_statistics import Floats

JUMPS = 3
"""How many jumps a staircase may have at the most, and a series that also rises between them."""
RESOLUTION = 1e-5
"""Of the values; what lies closer together is the same."""
CORRELATIONS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96)
"""How much a moment's noise may resemble that of the moment before."""
ENOUGH_SERIES = 64
"""So many series tell how much the noise of all resembles itself."""

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Rises:
    """What speaks for a rise all the time, for each series."""

    evidence: Floats
    """How much better it fits than the best staircase, by the Bayesian information criterion; above 10 is very
    strong."""
    slope: Floats
    """Between the jumps, per moment."""


def rises(y: Floats, correlation: float) -> Rises:
    """Compares the best line, with a few jumps in it, with the best staircase; `y` is (series, moments), ten or more.

    Moments are evenly spaced. Noise is that of an autoregression: each moment's is the one before times the
    correlation, and something new. So memory that wanders is no rise, and a jump must show from one moment to the next.
    A jump costs two parameters, its place and its height, and so must explain a good deal. Source: Schwarz, Estimating
    the dimension of a model, 1978; Kass and Raftery, Bayes factors, 1995.
    """
    flat, rising = _Fit(y, correlation, rising=False), _Fit(y, correlation, rising=True)
    return Rises(flat.criterion - rising.criterion, rising.slope)


def autocorrelation(y: Floats) -> float:
    """How much each moment's noise resembles that of the one before, in all series of (series, moments) together.

    It is the one under which the better of line and staircase says most of them. One series alone says little of it: a
    rise looks like noise that wanders. So series of the same process are asked together. Around a fitted line noise
    seems to resemble itself less than it does, which is made good. Source: Marriott and Pope, Bias in the estimation of
    autocorrelations, 1954; with a line.
    """
    some = y[:: -(-len(y) // ENOUGH_SERIES)]
    seen = min(CORRELATIONS, key=lambda each: _worth(some, each))
    return float(min(seen + (2 + 4 * seen) / y.shape[1], CORRELATIONS[-1]))


def _worth(y: Floats, correlation: float) -> float:
    fits = [_Fit(y, correlation, rising).criterion for rising in (False, True)]
    return float(np.minimum(*fits).sum())


class _Fit:
    """The best fit of each series with up to JUMPS jumps, which are found one by one, each placed anew beside the
    others."""

    def __init__(self, y: Floats, correlation: float, rising: bool) -> None:
        count = y.shape[1]
        shapes = _shapes(count, correlation)
        self._products = shapes @ shapes.T
        series = _whitened(y - y.mean(axis=1, keepdims=True), correlation)
        self._shared, self._total = series @ shapes.T, (series**2).sum(axis=1)
        least = count * (RESOLUTION * np.abs(y).mean(axis=1)) ** 2 + 1e-300
        chosen = np.tile(np.arange(1 + rising), (len(y), 1))
        self.criterion, self.slope = np.full(len(y), np.inf), np.zeros(len(y))
        for jumps in range(JUMPS + 1):
            if jumps:
                chosen = self._settled(np.hstack([chosen, self._next(chosen)[:, None]]), 1 + rising)
            heights = self._heights(chosen)
            rest = np.maximum(
                self._total - (heights * np.take_along_axis(self._shared, chosen, axis=1)).sum(axis=1), least
            )
            criterion = (
                count * np.log(rest / count) + (1 + 2 * jumps + rising) * math.log(count) - math.log(1 - correlation**2)
            )
            better = criterion < self.criterion
            self.criterion = np.where(better, criterion, self.criterion)
            self.slope = np.where(better, heights[:, 1] if rising else 0.0, self.slope)

    def _heights(self, chosen: Places) -> Floats:
        own = np.take_along_axis(self._shared, chosen, axis=1)
        return np.asarray(
            np.linalg.solve(self._products[chosen[:, :, None], chosen[:, None, :]], own[..., None])[..., 0]
        )

    def _next(self, chosen: Places) -> Places:
        """The jump that explains most of what the chosen shapes leave."""
        rows = self._products[chosen]
        within = np.linalg.solve(self._products[chosen[:, :, None], chosen[:, None, :]], rows)
        own = np.take_along_axis(self._shared, chosen, axis=1)
        beyond = self._shared - (own[:, :, None] * within).sum(axis=1)
        lengths = np.diag(self._products) - (rows * within).sum(axis=1)
        known = lengths > 1e-6 * np.diag(self._products)
        known[:, :2] = False
        explained = np.divide(beyond**2, lengths, out=np.full_like(lengths, -1.0), where=known)
        return np.asarray(explained.argmax(axis=1))

    def _settled(self, chosen: Places, first: int) -> Places:
        """The jumps, each placed anew beside the others until none moves."""
        for _ in range(JUMPS):
            before = chosen.copy()
            for place in range(first, chosen.shape[1]):
                chosen[:, place] = self._next(np.delete(chosen, place, axis=1))
            if (chosen == before).all():
                break
        return chosen


@cache
def _shapes(count: int, correlation: float) -> Floats:
    """What series are put together from: a level, a line, and a jump before each moment but the first."""
    moments = np.arange(count)
    jumps = moments[None, :] >= np.arange(1, count)[:, None]
    return _whitened(np.vstack([np.ones(count), moments - moments.mean(), jumps]).astype(float), correlation)


def _whitened(series: Floats, correlation: float) -> Floats:
    """What is new at each moment."""
    new = series.copy()
    new[:, 1:] -= correlation * series[:, :-1]
    new[:, 0] *= math.sqrt(1 - correlation**2)
    return new
