"""Student's t distribution for whole degrees of freedom, without SciPy."""

import math


def compute_tail_probability(t: float, freedom: int) -> float:
    """Return the probability of a value above `t`, by Abramowitz and Stegun 26.7.3 and 26.7.4; 0
    below 1e-15."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle)
    if freedom % 2 == 0:
        inside = math.sin(angle) * _sum_series(1.0, 1, freedom, cosine)
    else:
        total = _sum_series(cosine, 2, freedom, cosine) if freedom > 1 else 0.0
        inside = (angle + math.sin(angle) * total) * 2 / math.pi
    return max(0.0, (1 - inside) / 2)


def _sum_series(term: float, first_factor: int, freedom: int, cosine: float) -> float:
    total = term
    for factor in range(first_factor, freedom - 2, 2):
        term *= cosine**2 * factor / (factor + 1)
        total += term
    return total


def compute_quantile(share: float, freedom: int) -> float:
    """Return the quantile of a share of at least 0.5; to 1e-9 for shares up to 0.9999."""
    low = 0.0
    high = 1.0
    while compute_tail_probability(high, freedom) > 1 - share:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if compute_tail_probability(middle, freedom) > 1 - share:
            low = middle
        else:
            high = middle
    return high
