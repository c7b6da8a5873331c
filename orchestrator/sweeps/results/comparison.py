"""Comparing sweeps: what they chose and reached, trial for trial where both tried the same, and which differences are
noise.

A sweep's trials are its samples. Were two sweeps the same, what their trials reached could be dealt to them in any
other way (as `aggregate.compare` does with stretches of a run); where the same values were tried in
both, only the sign of each difference could be the other one (Fisher 1935), which takes fewer trials to tell. Where
each sweep repeats its configurations, these are its samples, and the spread between seeds is the noise that differences
are held against, by t tests.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import comb, isnan, sqrt
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate.compare import (
    LEVEL,
    Series,
    beyond_chance,
    comparison,
    config_differences,
    deals_of,
    direction_of,
    is_rare,
)
from orchestrator.stats.aggregate.configurations import Configuration
from orchestrator.stats.aggregate.student_t import tail
from orchestrator.sweeps.results.analysis import CONFIG, SEED, best_first, configurations_of, judged
from orchestrator.sweeps.results.result import Sweep

_log = logging.getLogger("hookyard")


def compare_sweeps(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """What differs between sweeps, as plain data; every sweep is compared with the first.

    `config`: dotted path -> one value per sweep. `chosen`: dotted path -> the value of each sweep's best trial.
    `metrics`, `same_values` and `costs`: name -> `values`, one per sweep, and `findings`: None for the first, then
    `less`, `more`, `noise`, or `unknown` where there are too few trials to tell. `same_values` has, for each metric,
    the mean difference from the first sweep over the trials that tried the same values, and how many these are; with
    repeats everywhere, those that had the same seed too.
    """
    objectives = dict(entry for sweep in reversed(sweeps) for entry in sweep.objectives)
    tables = [best_first(sweep.trials, dict(sweep.objectives), sweep.aggregate) for sweep in sweeps]
    _tell_damaged(tables)
    return {
        "sweeps": [sweep.name for sweep in sweeps],
        "trials": [table["status"].value_counts().to_dict() if len(table) else {} for table in tables],
        "config": config_differences([sweep.config for sweep in sweeps]),
        "chosen": _chosen(tables, [sweep.objective[0] for sweep in sweeps]),
        "metrics": _metrics(tables, objectives, [sweep.aggregate for sweep in sweeps]),
        "same_values": _same_values(tables, objectives),
        "costs": _costs(tables),
    }


def _chosen(tables: Sequence[pd.DataFrame], metrics: Sequence[str]) -> dict[str, list[Any]]:
    """The best trial of each sweep, and its values."""
    best = [
        table.iloc[0] if metric in table and table[metric].notna().any() else None
        for table, metric in zip(tables, metrics, strict=True)
    ]
    paths = dict.fromkeys(name for table in tables for name in table.columns if name.startswith(CONFIG))
    values = {path.removeprefix(CONFIG): [None if one is None else one.get(path) for one in best] for path in paths}
    return {"best trial": [None if one is None else one.name for one in best], **values}


def _metrics(
    tables: Sequence[pd.DataFrame], objectives: Mapping[str, str], aggregates: Sequence[str]
) -> dict[str, dict[str, list[Any]]]:
    found = {}
    for metric, mode in objectives.items():
        series = [_numbers(judged(table, metric, mode, "mean"), metric) for table in tables]
        best = np.max if mode == "max" else np.min
        if all("configuration" in table and metric in table for table in tables):
            leaders = [
                next(iter(configurations_of(table, metric, mode, aggregate)), None)
                for table, aggregate in zip(tables, aggregates, strict=True)
            ]
            found[f"{metric} best configuration"] = _of_leaders(leaders)
        else:
            found[f"{metric} best"] = comparison(series, best, series, _dealt_over_trials(best))
        found[f"{metric} median"] = comparison(series, np.median, series, _dealt_over_trials(np.median))
    return found


def _of_leaders(leaders: Sequence[Configuration | None]) -> dict[str, list[Any]]:
    """The mean of the best configuration of each sweep, and whether it differs from the first one's by more than seeds
    do."""
    means = [None if one is None or isnan(one.mean) else one.mean for one in leaders]
    return {"values": means, "findings": [None, *(_welch(leaders[0], other) for other in leaders[1:])]}


def _welch(first: Configuration | None, other: Configuration | None) -> str:
    """Welch's t test (1947) of two configurations' means, with whole degrees of freedom."""
    if first is None or other is None or min(first.n, other.n) < 2:
        return "unknown"
    parts = [one.std**2 / one.n for one in (first, other)]
    if not sum(parts):
        return direction_of(other.mean - first.mean)
    freedom = int(sum(parts) ** 2 / sum(part**2 / (one.n - 1) for part, one in zip(parts, (first, other), strict=True)))
    return _by_t(other.mean - first.mean, sqrt(sum(parts)), max(1, freedom))


def _by_t(difference: float, error: float, freedom: int) -> str:
    rare = difference != 0 and (error == 0 or 2 * tail(abs(difference) / error, freedom) < LEVEL)
    return direction_of(difference) if rare else "noise"


def _costs(tables: Sequence[pd.DataFrame]) -> dict[str, dict[str, list[Any]]]:
    names = [
        name
        for name in tables[0].columns
        if name in ("step_s", "train_s") or name.startswith(("peak_", "process_peak_"))
    ]
    series = {name: [_numbers(table, name) for table in tables] for name in names}
    found = {name: comparison(own, np.median, own, _dealt_over_trials(np.median)) for name, own in series.items()}
    return {name: entry for name, entry in found.items() if any(value is not None for value in entry["values"])}


def _dealt_over_trials(summary: Any) -> Any:
    def compare(difference: float, first: Series, other: Series) -> str:
        # Of two, for a difference may be the other way round as well.
        if 2 / comb(len(first) + len(other), len(first)) >= LEVEL:
            return "unknown"
        return direction_of(difference) if beyond_chance(first, other, summary) else "noise"

    return compare


def _numbers(table: pd.DataFrame, name: str) -> Series:
    return table[name].dropna().to_numpy(dtype=float) if name in table else np.empty(0)


def _same_values(tables: Sequence[pd.DataFrame], objectives: Mapping[str, str]) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = {}
    for metric in objectives:
        differences = [_differences(tables[0], other, metric) for other in tables[1:]]
        found[metric] = {
            "values": [None, *(float(one.groupby(level=0).mean().mean()) if len(one) else None for one in differences)],
            "trials": [None, *map(len, differences)],
            "findings": [None, *map(_compare_pairs, differences)],
        }
    return {metric: entry for metric, entry in found.items() if any(entry["trials"])}


def _tell_damaged(tables: Sequence[pd.DataFrame]) -> None:
    """Warn of each trial that is left out, as its files are damaged."""
    for table in tables:
        for error in table.loc[table["status"] == "damaged", "error"] if "status" in table else ():
            _log.warning("%s", error)


def _differences(first: pd.DataFrame, other: pd.DataFrame, metric: str) -> pd.Series:
    """By how much the other sweep's trials differ from those of the first with the same values, which are the index;
    where both sweeps repeat their configurations seed by seed, else the mean of repeats."""
    paths, others = (
        [name for name in table.columns if name.startswith(CONFIG) and (name != SEED or "configuration" not in table)]
        for table in (first, other)
    )
    if metric not in first or metric not in other or {*paths} != {*others}:
        return pd.Series(dtype=float)
    paired = "configuration" in first and "configuration" in other
    keys = [[_values(table, paths), table[SEED] if paired else pd.Series(0, table.index)] for table in (first, other)]
    reached = [table.groupby(key)[metric].mean() for table, key in zip((first, other), keys, strict=True)]
    return (reached[1] - reached[0]).dropna()


def _values(table: pd.DataFrame, paths: Sequence[str]) -> pd.Series:
    return table[paths].map(str).agg("\0".join, axis=1)


def _compare_pairs(differences: pd.Series) -> str:
    """Whether the mean of paired differences is beyond what seeds make of it; without repeats, beyond signs given at
    random."""
    groups = [group.to_numpy(dtype=float) for _, group in differences.groupby(level=0)]
    if not any(len(group) > 1 for group in groups):
        return compare_signs(differences.to_numpy(dtype=float))
    return compare_seeds(groups)


def compare_seeds(groups: Sequence[Series]) -> str:
    """Whether the mean of configurations' mean differences is other than 0: a t test with the variance within them,
    between seeds."""
    freedom = sum(len(group) - 1 for group in groups)
    variance = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / freedom
    error = sqrt(variance * sum(1 / len(group) for group in groups)) / len(groups)
    return _by_t(float(np.mean([group.mean() for group in groups])), error, freedom)


def compare_signs(differences: Series) -> str:
    """Whether the mean of paired differences is larger than with signs given at random (Fisher's permutation test)."""
    if 2.0 ** (1 - len(differences)) >= LEVEL:
        return "unknown"
    random, mean = np.random.default_rng(0), float(differences.mean())
    turns = [
        random.choice([-1.0, 1.0], (count, len(differences))) @ differences for count in deals_of(len(differences))
    ]
    return direction_of(mean) if is_rare(np.abs(np.concatenate(turns)) / len(differences), mean) else "noise"
