"""Comparison of sweeps: their best values, their metrics, and which differences are noise.

Without repeats, permutation tests compare the trials, as `aggregate.compare` does with parts of a run. If both sweeps
tried the same values, the signs of the paired differences are permuted (Fisher 1935), which needs fewer trials. With
repeats, t tests compare configurations with the spread between seeds.
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
from orchestrator.sweeps.results.analysis import CONFIG, SEED, aggregate_repeats, best_first, configurations_of
from orchestrator.sweeps.results.result import Sweep

_log = logging.getLogger("hookyard")


def compare_sweeps(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Compare every sweep with the first; return plain data.

    `config`: dotted path to one value per sweep. `chosen`: dotted path to the value of each sweep's best trial.
    `metrics`, `same_values` and `costs`: name to `values`, one per sweep, and `findings`: None for the first, then
    `less`, `more`, `noise`, or `unknown` with too few trials. `same_values` is the mean difference over the trials with
    the same values (with repeats also the same seed), and their number.
    """
    objectives = dict(entry for sweep in reversed(sweeps) for entry in sweep.objectives)
    tables = [best_first(sweep.trials, dict(sweep.objectives), sweep.aggregate) for sweep in sweeps]
    _warn_of_damaged(tables)
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
    """Return the best trial of each sweep, and its values."""
    best = [
        table.iloc[0] if metric in table and table[metric].notna().any() else None
        for table, metric in zip(tables, metrics, strict=True)
    ]
    paths = dict.fromkeys(name for table in tables for name in table.columns if name.startswith(CONFIG))
    values = {path.removeprefix(CONFIG): [None if row is None else row.get(path) for row in best] for path in paths}
    return {"best trial": [None if row is None else row.name for row in best], **values}


def _metrics(
    tables: Sequence[pd.DataFrame], objectives: Mapping[str, str], aggregates: Sequence[str]
) -> dict[str, dict[str, list[Any]]]:
    compared = {}
    for metric, mode in objectives.items():
        series = [_numbers(aggregate_repeats(table, metric, mode, "mean"), metric) for table in tables]
        best = np.max if mode == "max" else np.min
        if all("configuration" in table and metric in table for table in tables):
            leaders = [
                next(iter(configurations_of(table, metric, mode, aggregate)), None)
                for table, aggregate in zip(tables, aggregates, strict=True)
            ]
            compared[f"{metric} best configuration"] = _compare_configurations(leaders)
        else:
            compared[f"{metric} best"] = comparison(series, best, series, _permute_trials(best))
        compared[f"{metric} median"] = comparison(series, np.median, series, _permute_trials(np.median))
    return compared


def _compare_configurations(leaders: Sequence[Configuration | None]) -> dict[str, list[Any]]:
    """Compare the mean of each sweep's best configuration with the first one's."""
    means = [None if leader is None or isnan(leader.mean) else leader.mean for leader in leaders]
    return {"values": means, "findings": [None, *(_welch(leaders[0], other) for other in leaders[1:])]}


def _welch(first: Configuration | None, other: Configuration | None) -> str:
    """Compare two means by Welch's t test (1947), with whole degrees of freedom."""
    if first is None or other is None or min(first.n, other.n) < 2:
        return "unknown"
    parts = [group.std**2 / group.n for group in (first, other)]
    if not sum(parts):
        return direction_of(other.mean - first.mean)
    freedom = int(sum(parts) ** 2 / (parts[0] ** 2 / (first.n - 1) + parts[1] ** 2 / (other.n - 1)))
    return _t_test(other.mean - first.mean, sqrt(sum(parts)), max(1, freedom))


def _t_test(difference: float, error: float, freedom: int) -> str:
    rare = difference != 0 and (error == 0 or 2 * tail(abs(difference) / error, freedom) < LEVEL)
    return direction_of(difference) if rare else "noise"


def _costs(tables: Sequence[pd.DataFrame]) -> dict[str, dict[str, list[Any]]]:
    names = [
        name
        for name in tables[0].columns
        if name in ("step_s", "train_s") or name.startswith(("peak_", "process_peak_"))
    ]
    series = {name: [_numbers(table, name) for table in tables] for name in names}
    costs = {name: comparison(own, np.median, own, _permute_trials(np.median)) for name, own in series.items()}
    return {name: entry for name, entry in costs.items() if any(value is not None for value in entry["values"])}


def _permute_trials(summary: Any) -> Any:
    def compare(difference: float, first: Series, other: Series) -> str:
        # Two, as the test is two-sided.
        if 2 / comb(len(first) + len(other), len(first)) >= LEVEL:
            return "unknown"
        return direction_of(difference) if beyond_chance(first, other, summary) else "noise"

    return compare


def _numbers(table: pd.DataFrame, name: str) -> Series:
    return table[name].dropna().to_numpy(dtype=float) if name in table else np.empty(0)


def _same_values(tables: Sequence[pd.DataFrame], objectives: Mapping[str, str]) -> dict[str, dict[str, list[Any]]]:
    compared: dict[str, dict[str, list[Any]]] = {}
    for metric in objectives:
        differences = [_differences(tables[0], other, metric) for other in tables[1:]]
        compared[metric] = {
            "values": [None, *(float(own.groupby(level=0).mean().mean()) if len(own) else None for own in differences)],
            "trials": [None, *map(len, differences)],
            "findings": [None, *map(_compare_pairs, differences)],
        }
    return {metric: entry for metric, entry in compared.items() if any(entry["trials"])}


def _warn_of_damaged(tables: Sequence[pd.DataFrame]) -> None:
    """Warn of each trial that is left out, as its files are damaged."""
    for table in tables:
        for error in table.loc[table["status"] == "damaged", "error"] if "status" in table else ():
            _log.warning("%s", error)


def _differences(first: pd.DataFrame, other: pd.DataFrame, metric: str) -> pd.Series:
    """Return the other sweep's metric minus the first's, by values; seed by seed if both sweeps have repeats."""
    paths, others = (
        [name for name in table.columns if name.startswith(CONFIG) and (name != SEED or "configuration" not in table)]
        for table in (first, other)
    )
    if metric not in first or metric not in other or {*paths} != {*others}:
        return pd.Series(dtype=float)
    paired = "configuration" in first and "configuration" in other
    keys = [[_values(table, paths), table[SEED] if paired else pd.Series(0, table.index)] for table in (first, other)]
    means = [table.groupby(key)[metric].mean() for table, key in zip((first, other), keys, strict=True)]
    return (means[1] - means[0]).dropna()


def _values(table: pd.DataFrame, paths: Sequence[str]) -> pd.Series:
    return table[paths].map(str).agg("\0".join, axis=1)


def _compare_pairs(differences: pd.Series) -> str:
    """Compare paired differences with the spread between seeds; without repeats with random signs."""
    groups = [group.to_numpy(dtype=float) for _, group in differences.groupby(level=0)]
    if not any(len(group) > 1 for group in groups):
        return compare_signs(differences.to_numpy(dtype=float))
    return compare_seeds(groups)


def compare_seeds(groups: Sequence[Series]) -> str:
    """Test whether the mean of the groups' means is 0, by a t test with the variance within groups."""
    freedom = sum(len(group) - 1 for group in groups)
    variance = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / freedom
    error = sqrt(variance * sum(1 / len(group) for group in groups)) / len(groups)
    return _t_test(float(np.mean([group.mean() for group in groups])), error, freedom)


def compare_signs(differences: Series) -> str:
    """Test whether the mean of paired differences is 0, by Fisher's permutation test of their signs."""
    if 2.0 ** (1 - len(differences)) >= LEVEL:
        return "unknown"
    random, mean = np.random.default_rng(0), float(differences.mean())
    turns = [
        random.choice([-1.0, 1.0], (count, len(differences))) @ differences for count in deals_of(len(differences))
    ]
    return direction_of(mean) if is_rare(np.abs(np.concatenate(turns)) / len(differences), mean) else "noise"
