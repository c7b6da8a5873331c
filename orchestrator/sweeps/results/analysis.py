"""Analysis of a sweep's trials: their order, the Pareto front and parameter importance."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.tables.configurations import Configuration, Repeat, rank_configurations
from orchestrator.units import CONFIG

MIN_TRIALS = 10
"""Minimum number of trials, or with repeats of configurations, for parameter importance."""
N_RESAMPLES = 50
"""Number of resampled sets of trials for the standard error of importance."""
MAX_RESAMPLE_SIZE = 1000
"""Maximum number of trials in each set."""
N_GROUPS = 5
"""Number of groups into which a numeric parameter's values are split."""


def select_candidates(trials: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """Return the trials that can be the best: they have the metrics, did not fail, and break no
    constraint; nor does a repeat of theirs."""
    if not {*metrics} <= {*trials.columns}:
        return trials.iloc[:0]
    is_candidate = trials[[*metrics]].notna().all(axis=1) & (trials["status"] != "failed")
    if "infeasible" in trials:
        is_candidate &= _find_feasible(trials)
    return trials[is_candidate]


def _find_feasible(trials: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether each trial keeps the constraints; with repeats, whether all trials of its
    configuration do."""
    keeps = trials["infeasible"].isna()
    if "configuration" not in trials:
        return keeps
    return ~trials["configuration"].isin(trials.loc[~keeps, "configuration"])


def explain_no_best(trials: pd.DataFrame, metric: str) -> str:
    if metric not in trials or trials[metric].isna().all():
        return f"no trial has reported {metric}"
    if "infeasible" in trials and trials["infeasible"].notna().any():
        example = trials["infeasible"].dropna()
        return f"no trial keeps the constraints; of {example.index[0]}, {example.iloc[0]}"
    return f"each trial that reported {metric} failed; `hookyard resume --failed` retries them"


def sort_best_first(
    trials: pd.DataFrame, objectives: Mapping[str, str], aggregate: str = "mean"
) -> pd.DataFrame:
    """Sort trials by the sweep's first metric. Trials that failed or lack the metric come last.

    Repeats stay together, in the order of their configurations.
    """
    metric, mode = next(iter(objectives.items()))
    if metric not in trials:
        return trials
    ordered = trials.sort_values(metric, ascending=mode == "min", kind="stable")

    if "configuration" in trials:
        candidates: list[Any] = []
        for configuration in list_configurations(trials, metric, mode, aggregate):
            candidates.extend(configuration.trials)
    else:
        candidates = [*select_candidates(ordered, metric).index]
    others = ordered.index.difference(candidates, sort=False)
    return ordered.loc[[*candidates, *others]]


def list_configurations(
    trials: pd.DataFrame, metric: str, mode: str, aggregate: str = "mean"
) -> list[Configuration]:
    """Return the configurations of a sweep with repeats, best first.

    If one trial of a configuration breaks a constraint, none of its trials counts.
    """
    known = trials.dropna(subset=["configuration"]) if len(trials) else trials
    if known.empty:
        return []
    values = known[metric]
    if "infeasible" in known:
        values = values.where(_find_feasible(known))
    repeats = map(
        Repeat,
        known["configuration"].astype(int),
        known.index.astype(str),
        known["status"],
        values,
    )
    return rank_configurations(repeats, mode, aggregate)


def make_configurations_table(
    trials: pd.DataFrame,
    metric: str,
    mode: str,
    aggregate: str = "mean",
    repeated_path: str = "seed",
) -> pd.DataFrame:
    """Return one row per configuration, best first: its values, its metrics over repeats, and its
    best trial."""
    configurations = list_configurations(trials, metric, mode, aggregate)
    if not configurations:
        return pd.DataFrame()

    parameters = [name for name in trials if str(name).startswith(CONFIG)]
    paths = [name for name in parameters if name != CONFIG + repeated_path]
    values = trials.groupby("configuration")[paths].first()
    rows = [_describe_configuration(configuration, aggregate) for configuration in configurations]
    table = pd.DataFrame(rows, index=[configuration.number for configuration in configurations])
    if "infeasible" in trials:
        table["infeasible"] = trials["infeasible"].notna().groupby(trials["configuration"]).sum()
    return values.reindex(table.index).join(table).rename_axis("configuration")


def _describe_configuration(configuration: Configuration, aggregate: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "n": configuration.n,
        "mean": configuration.mean,
        "std": configuration.std,
        "low": configuration.low,
        "high": configuration.high,
    }
    if aggregate == "lower_bound":
        row["lower_bound"] = configuration.score
    row["failed"] = configuration.failed
    row["stopped"] = configuration.stopped
    row["best"] = configuration.trials[0] if configuration.trials else None
    return row


def aggregate_repeats(
    trials: pd.DataFrame, metric: str, mode: str, aggregate: str, repeated_path: str = "seed"
) -> pd.DataFrame:
    """Return the candidates; with repeats, one row per configuration, with the aggregated metric
    and without the repeated value."""
    known = select_candidates(trials, metric)
    if "configuration" not in known:
        return known
    column = CONFIG + repeated_path
    first = known.drop(columns=[column], errors="ignore").groupby("configuration").head(1)
    scores = {
        group.number: group.score for group in list_configurations(known, metric, mode, aggregate)
    }
    return first.assign(**{metric: first["configuration"].map(scores)})


def find_pareto_front(trials: pd.DataFrame, modes: Mapping[str, str]) -> pd.DataFrame:
    """Return the Pareto front, sorted by its first column, best first. `modes` maps columns to
    `max` or `min`.

    Equal trials are all kept. Trials that failed, or lack a number in one of the columns, are
    dropped.
    """
    rated = select_candidates(trials, *modes)
    signs = [1 if mode == "min" else -1 for mode in modes.values()]
    # Adding zero turns -0.0 into 0.0.
    values = rated[list(modes)].to_numpy(dtype=float) * signs + 0.0
    costs, rows = np.unique(values, axis=0, return_inverse=True)

    # The costs are sorted, so no later row can beat an earlier one.
    is_on_front = np.zeros(len(costs), dtype=bool)
    candidates = np.arange(len(costs))
    while len(candidates):
        is_on_front[candidates[0]] = True
        beats_somewhere = (costs[candidates] < costs[candidates[0]]).any(axis=1)
        candidates = candidates[beats_somewhere]
    first, mode = next(iter(modes.items()))
    return rated[is_on_front[rows.ravel()]].sort_values(
        first, ascending=mode == "min", kind="stable"
    )


# Importance


def compute_importance(units: pd.DataFrame, metric: str) -> pd.Series:
    """Return the importance of each parameter for the metric, the largest first. The shares sum to
    1, or are all 0.

    `units` are trials or, with repeats, configurations, as `aggregate_repeats` returns them. The
    importance is the share of the variance of the metric's ranks between groups of a parameter's
    values: Kruskal and Wallis' statistic as the effect size epsilon squared. The groups are the
    values of a list, or N_GROUPS equally large groups of numbers. Because of the ranks, a diverged
    trial weighs no more than the worst one, and a logarithmic domain equals a linear one. Only
    trials in which a parameter was drawn are used, and its importance is multiplied by their
    fraction.
    """
    effects = {}
    for name in map(str, units):
        if name.startswith(CONFIG):
            values = units[name].dropna()
            effect = _compute_effect_size(units.loc[values.index, metric], _assign_groups(values))
            effects[name.removeprefix(CONFIG)] = effect * len(values) / len(units)
    shares = pd.Series(effects, dtype=float, name="importance").rename_axis("parameter")
    total = shares.sum()
    return (shares / total if total > 0 else shares * 0).sort_values(ascending=False, kind="stable")


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
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if not numbers or values.nunique() <= N_GROUPS:
        return values.astype(str)
    positions = (values.astype(float).rank() - 0.5) / len(values)
    return (positions * min(N_GROUPS, max(2, len(values) // 4))).astype(int)
