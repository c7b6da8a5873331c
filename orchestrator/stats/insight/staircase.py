"""Staircases: whether a series rises all the time, or in jumps with nothing between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.stats.insight.robust import Floats

JUMPS, JUMPS_BESIDE_A_RISE = 3, 2
"""How many jumps a staircase may have at the most, and a series that also rises between them."""
RESOLUTION = 1e-5
"""Of the values; what lies closer together is the same."""


@dataclass(frozen=True)
class Rise:
    """What speaks for a rise all the time."""

    evidence: float
    """How much better it fits than the best staircase, by the Bayesian information criterion; above 10 is very strong."""
    slope: float
    """Between the jumps, per unit of x."""


def rise(x: Floats, y: Floats) -> Rise:
    """Compares the best line, with a few jumps in it, with the best staircase; at least ten values.

    A jump costs two parameters, its place and its height, and so must explain a good deal.
    Source: Schwarz, Estimating the dimension of a model, 1978; Kass and Raftery, Bayes factors, 1995.
    """
    flat = min(_fit(x, y, jumps, rising=False)[0] for jumps in range(JUMPS + 1))
    rising, slope = min(_fit(x, y, jumps, rising=True) for jumps in range(JUMPS_BESIDE_A_RISE + 1))
    return Rise(flat - rising, slope)


def _fit(x: Floats, y: Floats, jumps: int, rising: bool) -> tuple[float, float]:
    """The information criterion of the best fit with so many jumps, and its slope."""
    edges, count = _edges(len(y), jumps), len(y)
    xx, xy, yy = (_over(_within(*pair), edges) for pair in ((x, x), (x, y), (y, y)))
    slopes = np.divide(xy, xx, out=np.zeros_like(xx), where=xx > 0) if rising else np.zeros_like(xx)
    rest = np.maximum(yy - slopes * xy, count * (RESOLUTION * float(np.abs(y).mean())) ** 2 + 1e-300)
    best = int(rest.argmin())
    return count * math.log(rest[best] / count) + (1 + 2 * jumps + rising) * math.log(count), float(slopes[best])


@cache
def _edges(count: int, jumps: int) -> NDArray[np.int64]:
    """Where the stretches between jumps begin and end, for all ways to place them."""
    places = np.array(list(combinations(range(1, count), jumps)), dtype=np.int64).reshape(-1, jumps) if jumps else np.zeros((1, 0), dtype=np.int64)
    return np.hstack([np.zeros((len(places), 1), dtype=np.int64), places, np.full((len(places), 1), count, dtype=np.int64)])


def _within(a: Floats, b: Floats) -> Floats:
    """Sums of products about the mean, of all stretches: of that from i to j at [i, j]."""

    def between(values: Floats) -> Floats:
        sums = np.concatenate([[0.0], np.cumsum(values)])
        return np.asarray(sums[None, :] - sums[:, None])

    a, b = a - a.mean(), b - b.mean()
    lengths = np.maximum(between(np.ones_like(a)), 1)
    return between(a * b) - between(a) * between(b) / lengths


def _over(stretches: Floats, edges: NDArray[np.int64]) -> Any:
    return stretches[edges[:, :-1], edges[:, 1:]].sum(axis=1)
