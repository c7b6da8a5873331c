"""The order of a sweep's trials and configurations in its tables, and which of them can be the best."""

from collections.abc import Mapping, Sequence

import pandas as pd

from orchestrator.tables.configurations import Configuration, RankedTrial
from orchestrator.tables.trial_ranking import list_eligible, rank_trials


def select_candidates(trials: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """Return the trials that can be the best: they have the metrics, did not fail, and break no
    constraint; nor does a repeat of theirs."""
    if not {*metrics} <= {*trials.columns}:
        return trials.iloc[:0]
    eligible = {trial.name for trial in list_eligible(_list_trials(trials, metrics[0]))}
    is_candidate = trials[[*metrics]].notna().all(axis=1) & trials.index.isin(eligible)
    return trials[is_candidate]


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
    candidates = rank_trials(_list_trials(trials, metric), mode, aggregate).trials
    others = ordered.index.difference([*candidates], sort=False)
    return ordered.loc[[*candidates, *others]]


def list_configurations(
    trials: pd.DataFrame, metric: str, mode: str, aggregate: str = "mean"
) -> Sequence[Configuration]:
    """Return the configurations of a sweep with repeats, best first.

    If one trial of a configuration breaks a constraint, none of its trials counts.
    """
    return rank_trials(_list_trials(trials, metric), mode, aggregate).configurations


def _list_trials(trials: pd.DataFrame, metric: str) -> list[RankedTrial]:
    columns = trials.reindex(columns=["configuration", "status", metric, "infeasible"])
    ranked = []
    for name, configuration, status, value, infeasible in columns.itertuples(name=None):
        number = None if pd.isna(configuration) else int(configuration)
        broken = None if pd.isna(infeasible) else infeasible
        ranked.append(RankedTrial(number, name, status, value, broken))
    return ranked
