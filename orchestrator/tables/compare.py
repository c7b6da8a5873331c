"""Comparison of runs: their configs, metrics, times and memory, and which of the differences are
noise.

Consecutive iterations are not independent samples: the machine was busy, the cache was warm. So
each run's iterations are split into N_BLOCKS blocks of equal length, and a permutation test
compares the medians of the blocks. A difference is significant if fewer than one in a hundred
permutations give one as large. The effect of another seed is unknown.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hooks.metrics.direction import direction
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.units import COSTS, is_number

N_BLOCKS = 10
PERMUTATION_ROUNDS, PERMUTATIONS_PER_ROUND = 10, 200
"""Permutations are drawn in rounds to bound their memory."""
SIGNIFICANCE_LEVEL = 0.01
"""Rate of false differences between equal runs, per compared number."""
MIN_ITERATIONS = 40
"""Smallest number of iterations that shows how much a run fluctuates."""
MIN_REPORTS = 8
MEMORY = ("rss_bytes", "cuda_peak_allocated_bytes")
Series = NDArray[np.float64]
MAX_ITERATIONS, STRETCH_LENGTH = 2**22, 1000
"""A run with more than MAX_ITERATIONS is sampled in stretches of STRETCH_LENGTH iterations."""


@dataclass(frozen=True)
class Side:
    """A run to compare."""

    name: str
    config: Mapping[str, Any]
    reports: Sequence[Mapping[str, Any]]
    rows: Rows
    """Training rows of all ranks."""
    modes: Mapping[str, str] = field(default_factory=dict)
    """Directions, `max` or `min`, of the metrics for which the run defines them."""


def compare(sides: Sequence[Side]) -> dict[str, Any]:
    """Compare every run with the first, and return plain data.

    `config` has one value per run for each dotted path. `metrics` and `costs` have, for each name,
    the runs' `values` (None if not measured) and `findings`: None for the first, then `less`,
    `more`, `noise`, or `unknown` if a run is too short. `not_known` has the metrics without a known
    direction, and therefore without a best value.
    """
    modes = _find_modes(sides)
    halves = [_load_halves(side.rows) for side in sides]
    return {
        "runs": [side.name for side in sides],
        "ranks": [len(table.index.unique("rank")) for table in halves],
        "config": find_config_differences([side.config for side in sides]),
        "metrics": _compare_reports([side.reports for side in sides], modes),
        "not_known": [name for name, mode in modes.items() if mode is None],
        "costs": _compare_times_and_memory([side.rows for side in sides], halves),
    }


def find_config_differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return one value per config for each dotted path that differs, except the name; None if the
    path is missing."""
    flat = [dict(_flatten(config)) for config in configs]
    paths = dict.fromkeys(path for config in flat for path in config)
    values = {path: [config.get(path) for config in flat] for path in paths if path != "name"}
    return {path: entry for path, entry in values.items() if len({*map(_make_key, entry)}) > 1}


def _make_key(value: Any) -> str:
    """Return a value as text; the same for 1 and 1.0, but not for 1, true and the text "1"."""
    return json.dumps(json.loads(json.dumps(value, default=str), parse_int=float))


def _flatten(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        return [(path, value)]
    return [
        pair
        for key, inner in value.items()
        for pair in _flatten(inner, f"{path}.{key}" if path else str(key))
    ]


def _find_modes(sides: Sequence[Side]) -> dict[str, str | None]:
    """Return the direction of each reported metric; None if it is unknown, or if the runs
    disagree."""
    reported = [entry for side in sides for report in side.reports for entry in report.items()]
    names = dict.fromkeys(
        name
        for name, value in reported
        if name.startswith(("train/", "val/", "test/"))
        and not name.endswith(COSTS)
        and is_number(value)
    )
    modes = {name: {direction(name, side.modes) for side in sides} - {None} for name in names}
    return {
        name: next(iter(directions)) if len(directions) == 1 else None
        for name, directions in modes.items()
    }


def _compare_reports(
    runs: Sequence[Sequence[Mapping[str, Any]]], modes: Mapping[str, str | None]
) -> dict[str, dict[str, list[Any]]]:
    entries: dict[str, dict[str, list[Any]]] = {}
    for name, mode in modes.items():
        curves = [
            np.array(
                [report[name] for report in reports if isinstance(report.get(name), Real)],
                dtype=float,
            )
            for reports in runs
        ]
        finite = [curve[np.isfinite(curve)] for curve in curves]
        if mode is not None:
            best = np.max if mode == "max" else np.min
            entries[f"{name} best"] = compare_series(
                finite, best, finite, classify_metric_difference
            )
        entries[f"{name} last"] = compare_series(
            curves, lambda curve: curve[-1], finite, classify_metric_difference
        )
    return entries


def classify_metric_difference(difference: float, first: Series, other: Series) -> str:
    """Return the direction of a difference of more than three standard deviations of a report,
    otherwise `noise`.

    The variance of a report around the trend is half the mean square of successive differences in
    the second half of a curve (von Neumann 1941).
    """
    if min(len(first), len(other)) < MIN_REPORTS:
        return "unknown"
    variance = sum(np.mean(np.diff(curve[len(curve) // 2 :]) ** 2) / 2 for curve in (first, other))
    return describe_direction(difference) if abs(difference) > 3 * np.sqrt(variance) else "noise"


def _compare_times_and_memory(
    runs: Sequence[Rows], halves: Sequence[pd.DataFrame]
) -> dict[str, dict[str, list[Any]]]:
    tables = [load_iterations(rows, table) for rows, table in zip(runs, halves, strict=True)]
    entries: dict[str, dict[str, list[Any]]] = {}
    for name in ("step_s", "data_wait_s", "samples_per_s"):
        series = [get_numbers(table, name) for table in tables]
        entries[name] = compare_series(
            series,
            np.median,
            [summarize_blocks(values) for values in series],
            classify_cost_difference,
        )
    # The blocks of a total add up to the total.
    parts = [
        summarize_blocks(values, np.mean) * len(values)
        for values in (get_numbers(table, "step_s") for table in tables)
    ]
    totals = [np.array([compute_train_s(rows)]) for rows in runs]
    totals = [total[np.isfinite(total)] for total in totals]
    entries["train_s"] = compare_series(totals, np.sum, parts, classify_cost_difference)
    for name in MEMORY:
        series = [get_numbers(table, name) for table in halves]
        entries[f"peak_{name.removeprefix('cuda_peak_')}"] = compare_series(
            series, np.max, series, classify_memory_difference
        )
    return {
        name: entry
        for name, entry in entries.items()
        if any(value is not None for value in entry["values"])
    }


def compute_train_s(rows: Rows) -> float:
    """Return the training time of the slowest rank, in seconds; NaN if nothing was timed."""
    if "step_s" not in rows.columns:
        return math.nan
    return float(rows.aggregate({"s": "sum(step_s)"}, ["rank"], TRAINING)["s"].max())


def get_numbers(table: pd.DataFrame, name: str) -> Series:
    return table[name].dropna().to_numpy(dtype=float) if name in table else np.empty(0)


def load_iterations(rows: Rows, halves: pd.DataFrame) -> pd.DataFrame:
    """Return the slowest rank's times and all ranks' `samples_per_s` for each training iteration.

    A long run is sampled: stretches of STRETCH_LENGTH iterations, evenly spaced. `halves` is from
    _load_halves.
    """
    if not {"epoch", "step_s"} <= {*rows.columns}:
        return pd.DataFrame()
    columns: dict[str, str] = {
        name: f"max({name})" for name in ("step_s", "data_wait_s") if name in rows.columns
    }
    if "batch_size" in rows.columns:
        columns["samples_per_s"] = "sum(batch_size) / max(step_s)"
    every = max([1, *(halves["rows"].groupby("rank").sum() // MAX_ITERATIONS)])
    where = f"{TRAINING} and iteration // {STRETCH_LENGTH} % {every} = 0"
    return rows.aggregate(columns, ["epoch", "iteration"], where)


def summarize_blocks(series: Series, summary: Callable[[Series], Any] = np.median) -> Series:
    """Return a number for each of N_BLOCKS blocks of a series; none if it is shorter than
    MIN_ITERATIONS."""
    if len(series) < MIN_ITERATIONS:
        return np.empty(0)
    return np.array([summary(block) for block in np.array_split(series, N_BLOCKS)])


def classify_cost_difference(difference: float, first: Series, other: Series) -> str:
    """Return the direction of a difference that passes a permutation test of the blocks, otherwise
    `noise`."""
    if not len(first) or not len(other):
        return "unknown"
    return describe_direction(difference) if is_significant(first, other, np.mean) else "noise"


def is_significant(first: Series, other: Series, summary: Callable[..., Any]) -> bool:
    """Run a permutation test: return True if fewer than SIGNIFICANCE_LEVEL of the permutations
    differ as much.

    `summary` is called with an `axis`.
    """
    random, both = np.random.default_rng(0), np.concatenate([first, other])
    difference = abs(summary(first, axis=0) - summary(other, axis=0)) * (1 - 1e-9)
    n_as_large = 0
    for _ in range(PERMUTATION_ROUNDS):
        permutations = random.permuted(np.tile(both, (PERMUTATIONS_PER_ROUND, 1)), axis=1)
        differences = np.abs(
            summary(permutations[:, : len(first)], axis=1)
            - summary(permutations[:, len(first) :], axis=1)
        )
        n_as_large += int(np.count_nonzero(differences >= difference))
    return bool(
        (n_as_large + 1) / (PERMUTATION_ROUNDS * PERMUTATIONS_PER_ROUND + 1) < SIGNIFICANCE_LEVEL
    )


def _load_halves(rows: Rows) -> pd.DataFrame:
    """Return the number of `rows` and the largest memory of each rank in each half of the run."""
    columns = {
        "rows": "count(*)",
        **{name: f"max({name})" for name in MEMORY if name in rows.columns},
    }
    half = "iteration > (select (min(iteration) + max(iteration)) / 2 from rows)"
    return rows.aggregate(columns, ["rank", half])


def classify_memory_difference(difference: float, first: Series, other: Series) -> str:
    """Return the direction of a difference larger than between ranks and halves of one run,
    otherwise `noise`."""
    if min(len(first), len(other)) < 2:
        return "unknown"
    return (
        describe_direction(difference)
        if abs(difference) > max(np.ptp(first), np.ptp(other))
        else "noise"
    )


def compare_series(
    series: Sequence[Series],
    summary: Callable[[Series], Any],
    spreads: Sequence[Series],
    classify: Callable[[float, Series, Series], str],
) -> dict[str, list[Any]]:
    """Summarize each run's series, and classify its difference from the first run."""
    values = [
        float(summary(values_of_run)) if len(values_of_run) else None for values_of_run in series
    ]
    findings = [
        classify(value - values[0], spreads[0], spread)
        if value is not None and values[0] is not None and isfinite(value - values[0])
        else "unknown"
        for value, spread in zip(values[1:], spreads[1:], strict=True)
    ]
    return {"values": values, "findings": [None, *findings]}


def describe_direction(difference: float) -> str:
    return "more" if difference > 0 else "less"
