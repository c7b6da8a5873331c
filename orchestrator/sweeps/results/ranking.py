"""The order of a sweep's trials and configurations, and which of them can be the best."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from orchestrator.tables.configurations import Configuration, Repeat, rank_configurations


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
