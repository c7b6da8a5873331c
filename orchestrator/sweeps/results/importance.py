"""The importance of a sweep's parameters for a metric, and its standard error.

The importance is the share of the variance of the metric's ranks between groups of a parameter's
values: Kruskal and Wallis' statistic as the effect size epsilon squared. The groups are the values
of a list, or N_GROUPS equally large groups of numbers. Because of the ranks, a diverged trial weighs
no more than the worst one, and a logarithmic domain equals a linear one.
"""

import numpy as np
import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.units import is_number

MIN_TRIALS = 10
"""Minimum number of trials, or with repeats of configurations, for parameter importance."""
N_RESAMPLES = 50
"""Number of resampled sets of trials for the standard error of importance."""
MAX_RESAMPLE_SIZE = 1000
"""Maximum number of trials in each set."""
N_GROUPS = 5
"""Number of groups into which a numeric parameter's values are split."""


def compute_importance(units: pd.DataFrame, metric: str) -> pd.Series:
    """Return the importance of each parameter for the metric, the largest first. The shares sum to
    1, or are all 0.

    `units` are trials or, with repeats, configurations, as `aggregate_repeats` returns them. Only
    those in which a parameter was drawn are used, and its importance is multiplied by their
    fraction.
    """
    effects = {}
    for name in map(str, units):
        if name.startswith(CONFIG):
            values = units[name].dropna()
            effect = _compute_effect_size(units.loc[values.index, metric], _assign_groups(values))
            effects[name.removeprefix(CONFIG)] = effect * len(values) / len(units)
    shares = pd.Series(effects, dtype=float, name="importance").rename_axis("parameter")
    if shares.any():
        shares = shares / shares.sum()
    return shares.sort_values(ascending=False, kind="stable")


def make_importance_table(units: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the importance of each parameter and its `std_error`, the bootstrap's standard error
    (Efron 1979).

    The bootstrap draws N_RESAMPLES sets with a fixed seed, each of at most MAX_RESAMPLE_SIZE
    trials. The error is rescaled if there are more trials (m out of n; Bickel, Goetze and van Zwet
    1997).
    """
    random = np.random.RandomState(0)
    size = min(len(units), MAX_RESAMPLE_SIZE)
    resampled_shares = []
    for _ in range(N_RESAMPLES):
        resampled = units.iloc[random.randint(len(units), size=size)].reset_index(drop=True)
        resampled_shares.append(compute_importance(resampled, metric))

    shares = compute_importance(units, metric)
    error = pd.DataFrame(resampled_shares).std() * np.sqrt(size / len(units))
    return pd.DataFrame({"importance": shares, "std_error": error[shares.index]})


def _compute_effect_size(metric: pd.Series, groups: pd.Series) -> float:
    codes, known = pd.factorize(groups)
    ranks = metric.rank().to_numpy()
    count = len(known)
    if count < 2 or len(ranks) <= count or not np.ptp(ranks):
        return 0.0
    total = ((ranks - ranks.mean()) ** 2).sum()
    means = np.bincount(codes, ranks) / np.bincount(codes)
    within = ((ranks - means[codes]) ** 2).sum()
    return max(0.0, 1 - float(within / total) * (len(ranks) - 1) / (len(ranks) - count))


def _assign_groups(values: pd.Series) -> pd.Series:
    """Return the group of each value: equal values, or neighboring numbers if there are many."""
    if not values.map(is_number).all() or values.nunique() <= N_GROUPS:
        return values.astype(str)
    n_groups = min(N_GROUPS, max(2, len(values) // 4))
    positions = (values.astype(float).rank() - 0.5) / len(values)
    return (positions * n_groups).astype(int)
