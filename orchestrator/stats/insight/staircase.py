"""Staircases: tell series that rise steadily from those that only jump."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from orchestrator.stats.insight.robust_statistics import Floats

JUMPS = 3
"""Most jumps of a fit."""
RESOLUTION = 1e-5
"""Smallest difference, as a share of the values."""
CORRELATIONS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96)
"""Candidates for the autocorrelation of the noise."""
ENOUGH_SERIES = 64
"""Series that suffice to estimate the autocorrelation."""

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Rises:
    """Evidence for a steady rise of each series."""

    evidence: Floats
    """Bayesian information criterion of the best staircase minus that of the best line; above 10 is very strong."""
    slope: Floats
    """Slope between jumps, per moment."""


def rises(y: Floats, correlation: float) -> Rises:
    """Compare the best line with a few jumps with the best staircase; `y` is (series, moments), evenly spaced.

    The noise is autoregressive of order one, so memory that wanders is not a rise. A jump costs two parameters, its
    place and height. Source: Schwarz, Estimating the dimension of a model, 1978; Kass and Raftery, Bayes factors, 1995.
    """
    flat, rising = _Fit(y, correlation, rising=False), _Fit(y, correlation, rising=True)
    return Rises(flat.criterion - rising.criterion, rising.slope)


def autocorrelation(y: Floats) -> float:
    """Estimate the autocorrelation of the noise in all series of (series, moments) together, by the best fits.

    One series is not enough: a rise looks like noise that wanders. A fitted line biases the estimate downward, which is
    corrected. Source: Marriott and Pope, Bias in the estimation of autocorrelations, 1954.
    """
    some = y[:: -(-len(y) // ENOUGH_SERIES)]
    seen = min(CORRELATIONS, key=lambda each: _worth(some, each))
    return float(min(seen + (2 + 4 * seen) / y.shape[1], CORRELATIONS[-1]))


def _worth(y: Floats, correlation: float) -> float:
    fits = [_Fit(y, correlation, rising).criterion for rising in (False, True)]
    return float(np.minimum(*fits).sum())


class _Fit:
    """The best fit of each series with up to JUMPS jumps, added one by one; each moves until the fit is best."""

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
        """Return the jump that explains most of the residual."""
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
        """Move each jump in turn until none moves."""
        for _ in range(JUMPS):
            before = chosen.copy()
            for place in range(first, chosen.shape[1]):
                chosen[:, place] = self._next(np.delete(chosen, place, axis=1))
            if (chosen == before).all():
                break
        return chosen


@cache
def _shapes(count: int, correlation: float) -> Floats:
    """Return the regressors: a constant, a line, and a jump before each moment but the first."""
    moments = np.arange(count)
    jumps = moments[None, :] >= np.arange(1, count)[:, None]
    return _whitened(np.vstack([np.ones(count), moments - moments.mean(), jumps]).astype(float), correlation)


def _whitened(series: Floats, correlation: float) -> Floats:
    """Return the innovations of autoregressive series."""
    new = series.copy()
    new[:, 1:] -= correlation * series[:, :-1]
    new[:, 0] *= math.sqrt(1 - correlation**2)
    return new
