"""Power-function averages: their arithmetic, and what other of them a linear combination of stored ones makes.

The average of std s at step t weighs what the weights were at step i by (i^(g+1) - (i-1)^(g+1)) / t^(g+1): by the
profile (g+1) x^g / t^(g+1) over [0, t]. Its standard deviation, relative to t, is s. Source: "Analyzing and Improving
the Training Dynamics of Diffusion Models" (Karras et al., 2024), equations 2 to 4 and appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LARGEST_STD = 0.2886
"""The plain mean has 1 / sqrt(12); what is more would weigh early steps above late ones."""
_RANK_TOLERANCE = 1e-13
"""Directions in which profiles differ by less, relative to the largest, are left alone: float64 does not tell them
apart."""

Profile = tuple[float, float]
"""The step at which an average was taken, and its std."""


def exponent(std: float) -> float:
    """The g of a std: the largest root of (g+1) = std^2 (g+2)^2 (g+3)."""
    t = std**-2
    return float(np.roots([1.0, 7.0, 16.0 - t, 12.0 - t]).real.max())


def share(before: int, step: int, exponent: float) -> float:
    """What an update at a step takes of the new weights, `before` being the step of the last one, 0 where there was
    none."""
    return float(1 - (before / step) ** (exponent + 1))


def combination(stored: Sequence[Profile], wanted: Profile) -> tuple[list[float], float]:
    """The factor of each stored average in the sum whose profile is nearest to the wanted one, by least squares over
    all steps; and how far it is from it: the norm of the difference, relative to that of the wanted profile."""
    steps, exponents = np.array([[step, exponent(std)] for step, std in [*stored, wanted]]).T
    products = _products(steps, exponents)
    norms = np.sqrt(np.diag(products))
    products /= np.outer(norms, norms)
    among, towards = products[:-1, :-1], products[:-1, -1]
    found = np.linalg.lstsq(among, towards, rcond=_RANK_TOLERANCE)[0]
    # Below half of its digits float64 gives no square of a distance.
    distance = math.sqrt(max(1 - 2 * found @ towards + found @ among @ found, 0.0))
    return [float(one) for one in found * norms[-1] / norms[:-1]], distance


def _products(steps: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """The inner product of each two profiles over all steps, (n, n)."""
    one, other = (steps[:, None], exponents[:, None]), (steps[None, :], exponents[None, :])
    of_later = np.where(one[0] < other[0], other[1], one[1])
    first, last = np.minimum(one[0], other[0]), np.maximum(one[0], other[0])
    inside: np.ndarray = (one[1] + 1) * (other[1] + 1) * (first / last) ** of_later / ((one[1] + other[1] + 1) * last)
    return inside
