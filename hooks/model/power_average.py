"""Power-function averages, and their combination to averages of other widths.

The average of std s at step t gives the weights of step i the share (i^(g+1) - (i-1)^(g+1)) /
t^(g+1). Its profile over [0, t] is (g+1) x^g / t^(g+1), with the standard deviation s relative to
t. Source: "Analyzing and Improving the Training Dynamics of Diffusion Models" (Karras et al.,
2024), equations 2 to 4 and appendix C.
"""

import math
from collections.abc import Sequence

import numpy as np

LARGEST_STD = 0.2886
"""The plain mean has 1 / sqrt(12); a larger std would prefer early steps."""
_RANK_TOLERANCE = 1e-13
"""Singular values below this, relative to the largest, are noise in float64."""

Profile = tuple[float, float]
"""The step and the std of an average."""


def exponent(std: float) -> float:
    """Return the g of a std: the largest root of (g+1) = std^2 (g+2)^2 (g+3)."""
    t = std**-2
    return float(np.roots([1.0, 7.0, 16.0 - t, 12.0 - t]).real.max())


def update_coefficient(before: int, step: int, exponent: float) -> float:
    """Return the share of the new weights in the update at `step`, after one at `before` (0 for the
    first)."""
    return float(1 - (before / step) ** (exponent + 1))


def combination(stored: Sequence[Profile], wanted: Profile) -> tuple[list[float], float]:
    """Return the factors of the stored averages whose sum comes nearest to the wanted profile, and
    its distance.

    Nearest by least squares over all steps; the distance is relative to the norm of the wanted
    profile.
    """
    steps, exponents = np.array([[step, exponent(std)] for step, std in [*stored, wanted]]).T
    products = _products(steps, exponents)
    norms = np.sqrt(np.diag(products))
    products /= np.outer(norms, norms)
    among = products[:-1, :-1]
    towards = products[:-1, -1]
    factors = np.linalg.lstsq(among, towards, rcond=_RANK_TOLERANCE)[0]
    # Rounding may make the square of a small distance negative.
    distance = math.sqrt(max(1 - 2 * factors @ towards + factors @ among @ factors, 0.0))
    return [float(factor) for factor in factors * norms[-1] / norms[:-1]], distance


def _products(steps: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Return the inner products of all pairs of profiles, (n, n)."""
    first = np.minimum.outer(steps, steps)
    last = np.maximum.outer(steps, steps)
    own, other = np.broadcast_arrays(exponents[:, None], exponents[None, :])
    later = np.where(steps[:, None] < steps[None, :], other, own)
    shape = (first / last) ** later
    products: np.ndarray = (own + 1) * (other + 1) * shape / ((own + other + 1) * last)
    return products
