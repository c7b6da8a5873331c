"""Student's t distribution for whole degrees of freedom, without SciPy."""

from __future__ import annotations

import math


def compute_tail_probability(t: float, freedom: int) -> float:
    """Return the probability of a value above `t`, by Abramowitz and Stegun 26.7.3 and 26.7.4; 0 below 1e-15."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine if freedom > 1 else 0.0) if odd else (1.0, 1.0)
    for factor in range(2 if odd else 1, freedom - 2, 2):
        term *= cosine**2 * factor / (factor + 1)
        total += term
    inside = (angle + sine * total) * 2 / math.pi if odd else sine * total
    return max(0.0, (1 - inside) / 2)


def compute_quantile(share: float, freedom: int) -> float:
    """Return the quantile of a share of at least 0.5; to 1e-9 for shares up to 0.9999."""
    low, high = 0.0, 1.0
    while compute_tail_probability(high, freedom) > 1 - share:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if compute_tail_probability(middle, freedom) > 1 - share else (low, middle)
    return high
