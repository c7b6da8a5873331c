"""Comparison of sweeps: their settings, best trials, metrics and costs, and which differences are
noise.

Paired t tests compare trials with the same values. Otherwise, permutation tests compare the trials;
with repeats, Welch's t test compares the best configurations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, isnan
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.sweeps.results.configurations_table import aggregate_repeats
from orchestrator.sweeps.results.ranking import (
    list_configurations,
    select_candidates,
    sort_best_first,
)
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
    run_paired_test,
    run_welch_test,
)
from orchestrator.units import is_number


@dataclass(frozen=True)
class PairedDifferences:
    """Differences from the first sweep of trials with the same values; with repeats, also with the
    same seed or repeated value."""

    values: list[float | None]
    """Mean difference of each sweep; None for the first, and without such trials."""
    trials: list[int | None]
    """Number of trials of each sweep that have such a trial in the first; None for the first."""
    findings: list[Verdict | None]
    """None for the first."""


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


@dataclass(frozen=True)
class _ComparedSweep:
    """A sweep that is compared: its trials, and the settings that order them."""

    trials: pd.DataFrame
    """Its trials, best first."""
    objectives: Mapping[str, str]
    """Each metric with its mode; the first one orders the trials."""
    aggregate: str
    repeated_path: str

    @classmethod
    def read(cls, sweep: Sweep) -> Self:
        objectives = dict(sweep.objectives)
        trials = sort_best_first(sweep.trials, objectives, sweep.aggregate)
        return cls(trials, objectives, sweep.aggregate, sweep.repeated_path)

    @property
    def best_trial(self) -> Any:
        """The row of the best trial; None if no trial counts."""
        candidates = select_candidates(self.trials, next(iter(self.objectives)))
        return candidates.iloc[0] if len(candidates) else None

    def has_configurations(self, metric: str) -> bool:
        """Return whether the sweep has repeats, and trials with a metric."""
        return "configuration" in self.trials and metric in self.trials

    def find_best_configuration(self, metric: str, mode: str) -> Configuration | None:
        """Return the best configuration; None if none has a mean."""
        configurations = list_configurations(self.trials, metric, mode, self.aggregate)
        if not configurations or isnan(configurations[0].mean):
            return None
        return configurations[0]


def compare_sweeps(sweeps: Sequence[Sweep]) -> SweepComparison:
    """Compare every sweep with the first."""
    compared = [_ComparedSweep.read(sweep) for sweep in sweeps]
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
        same_values=_compare_same_values(compared, objectives),
        costs=_compare_costs(compared),
        environment=find_config_differences(environments),
    )


def _count_by_status(table: pd.DataFrame) -> dict[str, int]:
    if table.empty:
        return {}
    counts = table["status"].value_counts()
    return {str(status): int(count) for status, count in counts.items()}


def _find_chosen_values(sweeps: Sequence[_ComparedSweep]) -> dict[str, list[Any]]:
    """Return the name and the values of each sweep's best trial."""
    best_trials = [sweep.best_trial for sweep in sweeps]
    chosen = {"best trial": [None if trial is None else trial.name for trial in best_trials]}

    paths: dict[str, None] = {}
    for sweep in sweeps:
        paths.update(dict.fromkeys(_list_parameters(sweep.trials)))
    for path in paths:
        values = [None if trial is None else trial.get(path) for trial in best_trials]
        chosen[path.removeprefix(CONFIG)] = values
    return chosen


def _list_parameters(table: pd.DataFrame) -> list[str]:
    return [name for name in map(str, table) if name.startswith(CONFIG)]


# Metrics and costs, by permutation tests and Welch's t test


def _compare_metrics(
    sweeps: Sequence[_ComparedSweep], objectives: Mapping[str, str]
) -> dict[str, ComparedValues]:
    tables = [sweep.trials for sweep in sweeps]
    compared = {}
    for metric, mode in objectives.items():
        if all(sweep.has_configurations(metric) for sweep in sweeps):
            leaders = [sweep.find_best_configuration(metric, mode) for sweep in sweeps]
            compared[f"{metric} best configuration"] = _compare_configurations(leaders)
        else:
            best = np.max if mode == "max" else np.min
            compared[f"{metric} best"] = _compare_trials(tables, metric, mode, best)
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


def _compare_costs(sweeps: Sequence[_ComparedSweep]) -> dict[str, ComparedValues]:
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


# Trials with the same values, by paired t tests


def _compare_same_values(
    sweeps: Sequence[_ComparedSweep], objectives: Mapping[str, str]
) -> dict[str, PairedDifferences]:
    compared = {}
    for metric in objectives:
        first, *others = (_Candidates.select(sweep, metric) for sweep in sweeps)
        differences = [_compute_differences(first, other, metric) for other in others]
        counts = [len(own) for own in differences]
        if any(counts):
            compared[metric] = PairedDifferences(
                values=[None, *summarize(differences, np.mean)],
                trials=[None, *counts],
                findings=[None, *map(run_paired_test, differences)],
            )
    return compared


class _Candidates(NamedTuple):
    """The trials of a sweep that count, and the column in which its repeats differ."""

    table: pd.DataFrame
    repeated: str

    @classmethod
    def select(cls, sweep: _ComparedSweep, metric: str) -> Self:
        return cls(select_candidates(sweep.trials, metric), CONFIG + sweep.repeated_path)

    @property
    def has_repeats(self) -> bool:
        return "configuration" in self.table

    def list_paired_parameters(self, pairs_repeats: bool) -> list[str]:
        """Return the parameters by which trials are paired, without the repeated one if the other
        sweep has no repeats."""
        paths = sorted(_list_parameters(self.table))
        if self.has_repeats and not pairs_repeats:
            paths = [path for path in paths if path != self.repeated]
        return paths


def _compute_differences(first: _Candidates, other: _Candidates, metric: str) -> Series:
    """Return the other sweep's metric minus the first's, by values; by values and repeat if both
    sweeps have repeats."""
    pairs_repeats = first.has_repeats and other.has_repeats
    paths = first.list_paired_parameters(pairs_repeats)
    if first.table.empty or other.table.empty or not paths:
        return np.empty(0)
    if paths != other.list_paired_parameters(pairs_repeats):
        return np.empty(0)

    before = _average_by_values(first.table, paths, metric)
    differences = np.asarray(
        _average_by_values(other.table, paths, metric) - before, dtype=np.float64
    )
    return differences[np.isfinite(differences)]


def _average_by_values(table: pd.DataFrame, paths: list[str], metric: str) -> "pd.Series[float]":
    keys = [table[path].map(_make_key) for path in paths]
    return table[metric].groupby(keys).mean()


def _make_key(value: Any) -> str:
    """Return a value as text; the same for 8 and 8.0, as a column with empty cells makes floats of
    whole numbers."""
    if is_number(value) and value == float(value):
        return repr(float(value))
    return str(value)
