"""The probability that a configuration of a race, whose trials have not all ended, still wins.

Of n values out of R, with mean m and variance v, the mean over all R is m with the variance
v (R - n) / (R n) (stochastic curtailment: Lan, Simon and Halperin 1982). The variance between seeds
is pooled over configurations, or a configuration's own where that is larger. The difference of two
means has Student's t distribution. If a seed is good or bad for all configurations, the differences
between trials with the same seed vary less, so the smaller of the two probabilities is used.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean
from typing import NamedTuple

import numpy as np

from orchestrator.tables.student_t import compute_tail_probability

_MIN_DEGREES_OF_FREEDOM = 4
"""Minimum degrees of freedom to use pairs, and to regard seeds with equal results as equal."""

Results = Mapping[int, float]
"""Result of each seed of a configuration; higher is better."""


class _Variance(NamedTuple):
    """An estimate of the variance between seeds."""

    value: float
    freedom: int
    """Degrees of freedom of the estimate."""


def compute_win_probabilities(
    results: Mapping[int, Results], best: int, repeats: int
) -> dict[int, float]:
    """Compute each other configuration's probability that its mean over all `repeats` exceeds the
    mean of the best.

    `results` has those of the trials that have ended, by configuration.
    """
    pooled = _pool_variance([values.values() for values in results.values()])
    paired = _estimate_difference_variance(results)
    probabilities = {}
    for configuration, own_results in results.items():
        if configuration != best:
            probabilities[configuration] = min(
                _compare_means(results[best], own_results, pooled, repeats),
                _compare_pairs(results[best], own_results, paired, repeats),
            )
    return probabilities


def _compare_means(best: Results, other: Results, pooled: _Variance, repeats: int) -> float:
    """Return the probability that the other configuration wins, by its mean."""
    lead = fmean(best.values()) - fmean(other.values())
    best_variance = _compute_variance_of_mean(best.values(), pooled, repeats)
    other_variance = _compute_variance_of_mean(other.values(), pooled, repeats)
    variance = _Variance(best_variance + other_variance, pooled.freedom)
    return _compute_overtaking_probability(lead, variance)


def _compare_pairs(best: Results, other: Results, paired: _Variance, repeats: int) -> float:
    """Return the probability that the other configuration wins, by the differences between trials
    with the same seed; 1 if there are too few."""
    differences = [best[seed] - other[seed] for seed in best.keys() & other.keys()]
    if not differences or paired.freedom < _MIN_DEGREES_OF_FREEDOM:
        return 1.0
    variance = _compute_variance_of_mean(differences, paired, repeats)
    return _compute_overtaking_probability(fmean(differences), _Variance(variance, paired.freedom))


def _compute_variance_of_mean(values: Collection[float], common: _Variance, repeats: int) -> float:
    """Return the variance of the mean over all `repeats`, of which some values are known."""
    variance = max(common.value, _pool_variance([values]).value)
    return variance * (repeats - len(values)) / (repeats * len(values))


def _compute_overtaking_probability(lead: float, variance: _Variance) -> float:
    """Return the probability that a difference of `lead` changes its sign, from Student's t
    distribution."""
    if lead <= 0 or not variance.freedom:
        return 1.0
    if not variance.value:
        return 0.0 if variance.freedom >= _MIN_DEGREES_OF_FREEDOM else 1.0
    return compute_tail_probability(lead / math.sqrt(variance.value), variance.freedom)


# Variances


def _pool_variance(groups: Iterable[Collection[float]]) -> _Variance:
    """Return the variance around each group's mean."""
    squares = 0.0
    largest = 0.0
    freedom = 0
    for group in groups:
        mean = fmean(group)
        squares += sum((value - mean) ** 2 for value in group)
        largest = max(largest, *map(abs, group))
        freedom += len(group) - 1
    # Equal sums may differ by rounding errors.
    if freedom == 0 or squares <= (1e-12 * largest) ** 2:
        return _Variance(0.0, freedom)
    return _Variance(squares / freedom, freedom)


def _estimate_difference_variance(results: Mapping[int, Results]) -> _Variance:
    """Return the variance, between seeds, of the difference of two configurations.

    It is twice the residual variance after subtracting the means of configurations and seeds, in
    the largest table of configurations with the same seeds.
    """
    estimate = _Variance(0.0, 0)
    for seeds in {frozenset(values) for values in results.values()}:
        rows = []
        for values in results.values():
            if values.keys() >= seeds:
                rows.append([values[seed] for seed in seeds])
        table = np.array(rows)
        freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
        if freedom > estimate.freedom:
            effects = table.mean(axis=0) + table.mean(axis=1, keepdims=True) - table.mean()
            residuals = table - effects
            estimate = _Variance(2 * float((residuals**2).sum()) / freedom, freedom)
    return estimate
