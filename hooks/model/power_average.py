"""Power-function averages, and their combination to averages of other widths.

The average of std s at step t gives the weights of step i the share (i^(g+1) - (i-1)^(g+1)) /
t^(g+1). Its profile over [0, t] is (g+1) x^g / t^(g+1), with the standard deviation s relative to
t. Source: "Analyzing and Improving the Training Dynamics of Diffusion Models" (Karras et al.,
2024), equations 2 to 4 and appendix C.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

LARGEST_STD = 0.2886
"""The plain mean has 1 / sqrt(12); a larger std would prefer early steps."""
_RANK_TOLERANCE = 1e-13
"""Singular values below this, relative to the largest, are noise in float64."""

Profile = tuple[float, float]
"""The step and the std of an average."""


@cache
def compute_exponent(std: float) -> float:
    """Return the g of a std: the largest root of (g+1) = std^2 (g+2)^2 (g+3)."""
    inverse_variance = std**-2
    polynomial = [1.0, 7.0, 16.0 - inverse_variance, 12.0 - inverse_variance]
    return float(np.roots(polynomial).real.max())


def compute_update_coefficient(before: int, step: int, std: float) -> float:
    """Return the share of the new weights in the update at `step`, after one at `before` (0 for the
    first)."""
    return float(1 - (before / step) ** (compute_exponent(std) + 1))


def find_combination(stored: Sequence[Profile], wanted: Profile) -> tuple[list[float], float]:
    """Return the factors of the stored averages whose sum comes nearest to the wanted profile, and
    its distance.

    Nearest by least squares over all steps; the distance is relative to the norm of the wanted
    profile.
    """
    products = _compute_inner_products([*stored, wanted])
    norms = np.sqrt(np.diag(products))
    # Between profiles of norm 1, so that the rank tolerance means the same for each.
    products /= np.outer(norms, norms)
    among_stored = products[:-1, :-1]
    with_wanted = products[:-1, -1]
    solution = np.linalg.lstsq(among_stored, with_wanted, rcond=_RANK_TOLERANCE)[0]
    factors = solution * norms[-1] / norms[:-1]

    square = 1 - 2 * solution @ with_wanted + solution @ among_stored @ solution
    # Rounding may make the square of a small distance negative.
    return factors.tolist(), math.sqrt(max(square, 0.0))


def _compute_inner_products(profiles: Sequence[Profile]) -> np.ndarray:
    """Return the integral of the product of each pair of profiles, (n, n).

    It is (g+1) (h+1) / (g+h+1) / t (s/t)^h, for a profile with exponent g up to step s, and a later
    one with exponent h up to step t.
    """
    steps = np.array([step for step, _ in profiles])
    exponents = np.array([compute_exponent(std) for _, std in profiles])
    first = np.minimum.outer(steps, steps)
    last = np.maximum.outer(steps, steps)
    later_exponents = np.where(np.less.outer(steps, steps), exponents, exponents[:, None])
    factors = np.multiply.outer(exponents + 1, exponents + 1)
    sums = np.add.outer(exponents, exponents) + 1
    products: np.ndarray = factors * (first / last) ** later_exponents / (sums * last)
    return products
