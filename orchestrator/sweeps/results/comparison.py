"""Comparison of sweeps: their best values, their metrics, and which differences are noise.

Paired t tests compare trials with the same values. Otherwise, permutation tests compare the trials,
as `aggregate.compare` does with parts of a run; with repeats, Welch's t test compares the best
configurations.
"""

from collections.abc import Mapping, Sequence
from math import comb, isnan, sqrt
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.sweeps.results.analysis import (
    CONFIG,
    SEED,
    aggregate_repeats,
    list_configurations,
    select_candidates,
    sort_best_first,
)
from orchestrator.sweeps.results.result import Sweep
from orchestrator.tables.compare import (
    SIGNIFICANCE_LEVEL,
    Series,
    compare_series,
    describe_direction,
    find_config_differences,
    get_numbers,
    is_significant,
)
from orchestrator.tables.configurations import Configuration, compute_tail_probability
from orchestrator.units import is_number

_MIN_PAIRS = 5
"""Minimum number of paired differences for a test."""


def compare_sweeps(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Compare every sweep with the first, and return plain data.

    `config` has one value per sweep for each dotted path, `chosen` the value of each sweep's best
    trial. `metrics`, `same_values` and `costs` have, for each name, one of the `values` per sweep,
    and `findings`: None, then `less`, `more`, `noise`, or `unknown` if there are too few trials.
    `same_values` is the mean difference over trials with the same values (with repeats also the
    same seed), and their number.
    """
    objectives = dict(entry for sweep in reversed(sweeps) for entry in sweep.objectives)
    tables = [
        sort_best_first(sweep.trials, dict(sweep.objectives), sweep.aggregate) for sweep in sweeps
    ]
    return {
        "sweeps": [sweep.name for sweep in sweeps],
        "trials": [
            table["status"].value_counts().to_dict() if len(table) else {} for table in tables
        ],
        "config": find_config_differences([sweep.config for sweep in sweeps]),
        "chosen": _find_best_trials(tables, [sweep.objective[0] for sweep in sweeps]),
        "metrics": _compare_metrics(tables, objectives, [sweep.aggregate for sweep in sweeps]),
        "same_values": _compare_same_values(tables, objectives),
        "costs": _compare_costs(tables),
    }


def _find_best_trials(
    tables: Sequence[pd.DataFrame], metrics: Sequence[str]
) -> dict[str, list[Any]]:
    candidates = [
        select_candidates(table, metric) for table, metric in zip(tables, metrics, strict=True)
    ]
    best = [table.iloc[0] if len(table) else None for table in candidates]
    paths = dict.fromkeys(
        name for table in tables for name in table.columns if name.startswith(CONFIG)
    )
    values = {
        path.removeprefix(CONFIG): [None if row is None else row.get(path) for row in best]
        for path in paths
    }
    return {"best trial": [None if row is None else row.name for row in best], **values}


def _compare_metrics(
    tables: Sequence[pd.DataFrame], objectives: Mapping[str, str], aggregates: Sequence[str]
) -> dict[str, dict[str, list[Any]]]:
    compared: dict[str, dict[str, list[Any]]] = {}
    for metric, mode in objectives.items():
        series = [
            get_numbers(aggregate_repeats(table, metric, mode, "mean"), metric) for table in tables
        ]
        best = np.max if mode == "max" else np.min
        if all("configuration" in table and metric in table for table in tables):
            leaders = [
                next(iter(list_configurations(table, metric, mode, aggregate)), None)
                for table, aggregate in zip(tables, aggregates, strict=True)
            ]
            compared[f"{metric} best configuration"] = {
                "values": [
                    None if leader is None or isnan(leader.mean) else leader.mean
                    for leader in leaders
                ],
                "findings": [None, *(_run_welch_test(leaders[0], other) for other in leaders[1:])],
            }
        else:
            compared[f"{metric} best"] = compare_series(series, best, series, _permute_trials(best))
        compared[f"{metric} median"] = compare_series(
            series, np.median, series, _permute_trials(np.median)
        )
    return compared


def _run_welch_test(first: Configuration | None, other: Configuration | None) -> str:
    """Compare two means by Welch's t test (1947), with integer degrees of freedom."""
    if first is None or other is None or min(first.n, other.n) < 2 or isnan(first.std + other.std):
        return "unknown"
    parts = [group.std**2 / group.n for group in (first, other)]
    squares = parts[0] ** 2 / (first.n - 1) + parts[1] ** 2 / (other.n - 1)
    freedom = int(sum(parts) ** 2 / squares) if squares else 1
    return _run_t_test(other.mean - first.mean, sqrt(sum(parts)), max(1, freedom))


def _run_t_test(difference: float, error: float, freedom: int) -> str:
    is_significant_difference = difference != 0 and (
        error == 0
        or 2 * compute_tail_probability(abs(difference) / error, freedom) < SIGNIFICANCE_LEVEL
    )
    return describe_direction(difference) if is_significant_difference else "noise"


def _compare_costs(tables: Sequence[pd.DataFrame]) -> dict[str, dict[str, list[Any]]]:
    # A follower repeats the speed of its leader.
    tables = [
        table[table["leader"] == table.index] if "leader" in table else table for table in tables
    ]
    names = [
        name
        for name in dict.fromkeys(str(column) for table in tables for column in table)
        if name in ("step_s", "train_s") or name.startswith(("peak_", "process_peak_"))
    ]
    compare = _permute_trials(np.median)
    columns = {name: [get_numbers(table, name) for table in tables] for name in names}
    costs = {
        name: compare_series(series, np.median, series, compare) for name, series in columns.items()
    }
    return {
        name: entry
        for name, entry in costs.items()
        if any(value is not None for value in entry["values"])
    }


def _permute_trials(summary: Any) -> Any:
    def compare(difference: float, first: Series, other: Series) -> str:
        # The factor 2 is there because the test is two-sided.
        if 2 / comb(len(first) + len(other), len(first)) >= SIGNIFICANCE_LEVEL:
            return "unknown"
        return describe_direction(difference) if is_significant(first, other, summary) else "noise"

    return compare


def _compare_same_values(
    tables: Sequence[pd.DataFrame], objectives: Mapping[str, str]
) -> dict[str, dict[str, list[Any]]]:
    compared: dict[str, dict[str, list[Any]]] = {}
    for metric in objectives:
        first, *others = (select_candidates(table, metric) for table in tables)
        differences = [_compute_differences(first, other, metric) for other in others]
        compared[metric] = {
            "values": [
                None,
                *(float(pairs.mean()) if len(pairs) else None for pairs in differences),
            ],
            "trials": [None, *map(len, differences)],
            "findings": [None, *map(_compare_pairs, differences)],
        }
    return {metric: entry for metric, entry in compared.items() if any(entry["trials"])}


def _compute_differences(first: pd.DataFrame, other: pd.DataFrame, metric: str) -> Series:
    """Return the other sweep's metric minus the first's, by values; by values and seed if both
    sweeps have repeats."""
    paired_seeds = "configuration" in first and "configuration" in other
    paths, other_paths = (
        {
            name
            for name in map(str, table)
            if name.startswith(CONFIG)
            and (name != SEED or paired_seeds or "configuration" not in table)
        }
        for table in (first, other)
    )
    if first.empty or other.empty or paths != other_paths:
        return np.empty(0)
    means = [
        table.groupby(table[sorted(paths)].map(_key).agg("\0".join, axis=1))[metric].mean()
        for table in (first, other)
    ]
    differences: Series = (means[1] - means[0]).to_numpy(dtype=float)
    return differences[np.isfinite(differences)]


def _key(value: Any) -> str:
    """Return a value as text; the same for 8 and 8.0, as a column with empty cells makes floats of
    whole numbers."""
    return repr(float(value)) if is_number(value) and value == float(value) else str(value)


def _compare_pairs(differences: Series) -> str:
    """Test whether the mean of paired differences is 0, by a paired t test."""
    count = len(differences)
    if count < _MIN_PAIRS:
        return "unknown"
    return _run_t_test(
        float(differences.mean()), float(differences.std(ddof=1)) / sqrt(count), count - 1
    )
