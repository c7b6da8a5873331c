"""Comparison of sweeps: their settings, best trials, metrics and costs, and which differences are
noise.

Permutation tests compare the trials. With repeats, Welch's t test compares the best configurations.
Trials with the same values are compared in pairs (`paired_comparison`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.sweeps.results.compared_sweep import ComparedSweep, list_parameters
from orchestrator.sweeps.results.configurations_table import aggregate_repeats
from orchestrator.sweeps.results.paired_comparison import PairedDifferences, compare_same_values
from orchestrator.sweeps.results.result import Sweep
from orchestrator.tables.compared_values import (
    Classify,
    ComparedValues,
    Series,
    Verdict,
    compare_with_first,
    drop_unmeasured,
    get_numbers,
    make_verdict,
    summarize,
)
from orchestrator.tables.config_differences import find_config_differences
from orchestrator.tables.configurations import Configuration
from orchestrator.tables.significance import (
    SIGNIFICANCE_LEVEL,
    is_significant,
    run_welch_test,
)


@dataclass(frozen=True)
class SweepComparison:
    """Sweeps, each compared with the first. `hookyard compare --json` prints the fields."""

    sweeps: list[str]
    trials: list[dict[str, int]]
    """Number of trials of each sweep by status."""
    config: dict[str, list[Any]]
    """Each sweep's value of the settings that differ, by dotted path."""
    chosen: dict[str, list[Any]]
    """Name of each sweep's best trial, and its values by dotted path."""
    metrics: dict[str, ComparedValues]
    same_values: dict[str, PairedDifferences]
    """By metric."""
    costs: dict[str, ComparedValues]
    """Times and memory."""
    environment: dict[str, list[Any]]
    """Each sweep's value of the entries of the environment that differ, by dotted path."""


def compare_sweeps(sweeps: Sequence[Sweep]) -> SweepComparison:
    """Compare every sweep with the first."""
    compared = [ComparedSweep.read(sweep) for sweep in sweeps]
    objectives: dict[str, str] = {}
    for sweep in compared:
        for metric, mode in sweep.objectives.items():
            objectives.setdefault(metric, mode)
    environments = [
        sweep.folder.read_metadata().provenance.describe_environment() for sweep in sweeps
    ]
    return SweepComparison(
        sweeps=[sweep.name for sweep in sweeps],
        trials=[_count_by_status(sweep.trials) for sweep in compared],
        config=find_config_differences([sweep.config for sweep in sweeps]),
        chosen=_find_chosen_values(compared),
        metrics=_compare_metrics(compared, objectives),
        same_values=compare_same_values(compared, objectives),
        costs=_compare_costs(compared),
        environment=find_config_differences(environments),
    )


def _count_by_status(table: pd.DataFrame) -> dict[str, int]:
    if table.empty:
        return {}
    counts = table["status"].value_counts()
    return {str(status): int(count) for status, count in counts.items()}


def _find_chosen_values(sweeps: Sequence[ComparedSweep]) -> dict[str, list[Any]]:
    """Return the name and the values of each sweep's best trial."""
    best_trials = [sweep.best_trial for sweep in sweeps]
    chosen = {"best trial": [None if trial is None else trial.name for trial in best_trials]}

    paths: dict[str, None] = {}
    for sweep in sweeps:
        paths.update(dict.fromkeys(list_parameters(sweep.trials)))
    for path in paths:
        values = [None if trial is None else trial.get(path) for trial in best_trials]
        chosen[path.removeprefix(CONFIG)] = values
    return chosen


def _compare_metrics(
    sweeps: Sequence[ComparedSweep], objectives: Mapping[str, str]
) -> dict[str, ComparedValues]:
    tables = [sweep.trials for sweep in sweeps]
    compared = {}
    for metric, mode in objectives.items():
        if all(sweep.has_configurations(metric) for sweep in sweeps):
            best = [sweep.find_best_configuration(metric, mode) for sweep in sweeps]
            compared[f"{metric} best configuration"] = _compare_configurations(best)
        else:
            find_best = np.max if mode == "max" else np.min
            compared[f"{metric} best"] = _compare_trials(tables, metric, mode, find_best)
        compared[f"{metric} median"] = _compare_trials(tables, metric, mode, np.median)
    return compared


def _compare_trials(
    tables: Sequence[pd.DataFrame], metric: str, mode: str, summary: Callable[..., Any]
) -> ComparedValues:
    """Compare a summary of the trials, or of the configurations of a sweep with repeats."""
    series = [
        get_numbers(aggregate_repeats(table, metric, mode, "mean"), metric) for table in tables
    ]
    test = _make_permutation_test(summary)
    return compare_with_first(summarize(series, summary), series, test)


def _compare_configurations(best: Sequence[Configuration | None]) -> ComparedValues:
    verdicts = [run_welch_test(best[0], other) for other in best[1:]]
    return ComparedValues(
        values=[None if configuration is None else configuration.mean for configuration in best],
        findings=[None, *verdicts],
    )


def _compare_costs(sweeps: Sequence[ComparedSweep]) -> dict[str, ComparedValues]:
    compared = {}
    tables = [_drop_followers(sweep.trials) for sweep in sweeps]
    for name in _list_costs(tables):
        series = [get_numbers(table, name) for table in tables]
        medians = summarize(series, np.median)
        compared[name] = compare_with_first(medians, series, _make_permutation_test(np.median))
    return drop_unmeasured(compared)


def _drop_followers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the trials that trained; a follower repeats the speed of its leader."""
    return table[table["leader"] == table.index] if "leader" in table else table


def _list_costs(tables: Sequence[pd.DataFrame]) -> list[str]:
    names: dict[str, None] = {}
    for table in tables:
        for name in map(str, table):
            if name in ("step_s", "train_s") or name.startswith(("peak_", "process_peak_")):
                names[name] = None
    return list(names)


def _make_permutation_test(summary: Callable[..., Any]) -> Classify:
    """Return a function that classifies a difference between a summary of two series."""

    def classify(difference: float, first: Series, other: Series) -> Verdict:
        # The factor 2 is there because the test is two-sided.
        if 2 / comb(len(first) + len(other), len(first)) >= SIGNIFICANCE_LEVEL:
            return "unknown"
        return make_verdict(difference, is_real=is_significant(first, other, summary))

    return classify
