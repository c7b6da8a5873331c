"""Compare runs: differences of their configs, metrics and costs, and which of them are noise.

Consecutive iterations are not independent samples: the machine was busy, the cache was warm. So each run's iterations
are split into BLOCKS blocks of equal length. A permutation test deals the blocks' medians to the two runs at random; a
difference counts if fewer than one in a hundred deals give one as large. The effect of another seed remains unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hooks.metrics.direction import direction
from orchestrator.stats.aggregate.quantities import is_number
from orchestrator.stats.aggregate.usage import train_s
from orchestrator.stats.read.query import TRAINING, Rows

BLOCKS = 10
ROUNDS, DEALS = 10, 200
"""Random deals are made in rounds, which bounds their memory."""
LEVEL = 0.01
"""Rate of false differences between equal runs, for each number compared."""
SHORTEST = 40
"""Fewest iterations that show a run's own fluctuation."""
FEWEST_REPORTS = 8
Series = NDArray[np.float64]
MOST_ITERATIONS, STRETCH = 2**22, 1000
"""A run with more iterations is sampled in stretches of STRETCH iterations."""


@dataclass(frozen=True)
class Side:
    """A run to compare."""

    name: str
    config: Mapping[str, Any]
    reports: Sequence[Mapping[str, Any]]
    rows: Rows
    """Training rows of all ranks."""
    modes: Mapping[str, str] = field(default_factory=dict)
    """`max` or `min` of the metrics for which the run says it."""


def compare(sides: Sequence[Side]) -> dict[str, Any]:
    """Compare every run with the first, as plain data.

    `config`: dotted path -> one value per run. `metrics` and `costs`: name -> `values`, one per run, None if it was not
    measured, and `findings`: None for the first, then `less`, `more`, `noise`, or `unknown` if a run is too short.
    `not_known`: metrics without a best, since it is not known which way they are better.
    """
    modes = _modes(sides)
    ranks = [len(side.rows.aggregate({}, ["rank"])) if "rank" in side.rows.columns else 0 for side in sides]
    return {
        "runs": [side.name for side in sides],
        "ranks": ranks,
        "config": config_differences([side.config for side in sides]),
        "metrics": _metrics([side.reports for side in sides], modes),
        "not_known": [name for name, mode in modes.items() if mode is None],
        "costs": _costs([side.rows for side in sides]),
    }


def config_differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each dotted path that differ between configs, their name aside; None for a missing one."""
    flat = [dict(_flatten(config)) for config in configs]
    paths = dict.fromkeys(path for config in flat for path in config)
    values = {path: [config.get(path) for config in flat] for path in paths if path != "name"}
    return {
        path: entry for path, entry in values.items() if len({json.dumps(value, default=str) for value in entry}) > 1
    }


def _flatten(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        return [(path, value)]
    return [pair for key, inner in value.items() for pair in _flatten(inner, f"{path}.{key}" if path else str(key))]


def _modes(sides: Sequence[Side]) -> dict[str, str | None]:
    """Return each reported metric with the way it is better; None if that is not known, or runs say opposite things."""
    reported = [entry for side in sides for report in side.reports for entry in report.items()]
    names = dict.fromkeys(name for name, value in reported if _is_metric(name) and is_number(value))
    modes = {name: {direction(name, side.modes) for side in sides} - {None} for name in names}
    return {name: next(iter(ways)) if len(ways) == 1 else None for name, ways in modes.items()}


def _metrics(
    runs: Sequence[Sequence[Mapping[str, Any]]], modes: Mapping[str, str | None]
) -> dict[str, dict[str, list[Any]]]:
    entries: dict[str, dict[str, list[Any]]] = {}
    for name, mode in modes.items():
        curves = [
            np.array([report[name] for report in reports if isinstance(report.get(name), Real)], dtype=float)
            for reports in runs
        ]
        finite = [curve[np.isfinite(curve)] for curve in curves]
        if mode is not None:
            best = np.max if mode == "max" else np.min
            entries[f"{name} best"] = comparison(finite, best, finite, compare_metrics)
        entries[f"{name} last"] = comparison(curves, lambda curve: curve[-1], finite, compare_metrics)
    return entries


def _is_metric(name: str) -> bool:
    phase, _, rest = name.partition("/")
    return phase in ("train", "val", "test") and not rest.endswith(("_s", "_bytes"))


def compare_metrics(difference: float, first: Series, other: Series) -> str:
    """Return the direction of a difference beyond three standard deviations of a report, else `noise`.

    Half the mean square of successive differences, in the later half of a curve, is the variance of a report around its
    trend (von Neumann 1941).
    """
    if min(len(first), len(other)) < FEWEST_REPORTS:
        return "unknown"
    variance = sum(np.mean(np.diff(curve[len(curve) // 2 :]) ** 2) / 2 for curve in (first, other))
    return direction_of(difference) if abs(difference) > 3 * np.sqrt(variance) else "noise"


def _costs(runs: Sequence[Rows]) -> dict[str, dict[str, list[Any]]]:
    tables = [iterations(rows) for rows in runs]
    entries: dict[str, dict[str, list[Any]]] = {}
    for name in ("step_s", "data_wait_s", "samples_per_s"):
        series = [_column(table, name) for table in tables]
        entries[name] = comparison(series, np.median, [blocks(values) for values in series], compare_costs)
    # The blocks of a total add up to it.
    parts = [blocks(values, np.mean) * len(values) for values in (_column(table, "step_s") for table in tables)]
    totals = [np.array([train_s(rows)]) for rows in runs]
    totals = [total[np.isfinite(total)] for total in totals]
    entries["train_s"] = comparison(totals, np.sum, parts, compare_costs)
    for name in ("rss_bytes", "cuda_peak_allocated_bytes"):
        peaks = [_peaks(rows, name) for rows in runs]
        entries[f"peak_{name.removeprefix('cuda_peak_')}"] = comparison(peaks, np.max, peaks, compare_memory)
    return {name: entry for name, entry in entries.items() if any(value is not None for value in entry["values"])}


def _column(table: pd.DataFrame, name: str) -> Series:
    return table[name].to_numpy(dtype=float) if name in table else np.empty(0)


def iterations(rows: Rows) -> pd.DataFrame:
    """Return the slowest rank's times and all ranks' `samples_per_s` of each training iteration; of a long run's some.

    Those are stretches of STRETCH iterations, evenly over the run.
    """
    if not {"epoch", "step_s"} <= {*rows.columns}:
        return pd.DataFrame()
    columns: dict[str, str] = {name: f"max({name})" for name in ("step_s", "data_wait_s") if name in rows.columns}
    if "batch_size" in rows.columns:
        columns["samples_per_s"] = "sum(batch_size) / max(step_s)"
    every = 1
    if rows.total > MOST_ITERATIONS:
        every = max(1, rows.total // (MOST_ITERATIONS * len(rows.aggregate({}, ["rank"]))))
    where = f"{TRAINING} and iteration // {STRETCH} % {every} = 0"
    return rows.aggregate(columns, ["epoch", "iteration"], where).dropna()


def blocks(series: Series, summary: Callable[[Series], Any] = np.median) -> Series:
    """Return a number for each of BLOCKS parts of a series; none if it is shorter than SHORTEST."""
    if len(series) < SHORTEST:
        return np.empty(0)
    return np.array([summary(block) for block in np.array_split(series, BLOCKS)])


def compare_costs(difference: float, first: Series, other: Series) -> str:
    """Return the direction of a difference that passes a permutation test of the blocks, else `noise`."""
    if not len(first) or not len(other):
        return "unknown"
    return direction_of(difference) if beyond_chance(first, other, np.mean) else "noise"


def beyond_chance(first: Series, other: Series, summary: Callable[..., Any]) -> bool:
    """Return whether `summary`, which takes an `axis`, differs by more than between samples dealt at random.

    Fewer than LEVEL of the random deals may differ as much.
    """
    random, both = np.random.default_rng(0), np.concatenate([first, other])
    difference = abs(summary(first, axis=0) - summary(other, axis=0)) * (1 - 1e-9)
    as_large = 0
    for _ in range(ROUNDS):
        deals = random.permuted(np.tile(both, (DEALS, 1)), axis=1)
        by_chance = np.abs(summary(deals[:, : len(first)], axis=1) - summary(deals[:, len(first) :], axis=1))
        as_large += int(np.count_nonzero(by_chance >= difference))
    return bool((as_large + 1) / (ROUNDS * DEALS + 1) < LEVEL)


def _peaks(rows: Rows, name: str) -> Series:
    """Return the largest value of each rank in each half of the run."""
    if name not in rows.columns:
        return np.empty(0)
    middle = rows.aggregate({"middle": "(min(iteration) + max(iteration)) / 2"})["middle"].iloc[0]
    if np.isnan(middle):
        return np.empty(0)
    return (
        rows.aggregate({name: f"max({name})"}, ["rank", f"iteration > {middle}"])[name].dropna().to_numpy(dtype=float)
    )


def compare_memory(difference: float, first: Series, other: Series) -> str:
    """Return the direction of a difference larger than those between ranks and halves of a run, else `noise`."""
    if min(len(first), len(other)) < 2:
        return "unknown"
    return direction_of(difference) if abs(difference) > max(np.ptp(first), np.ptp(other)) else "noise"


def comparison(
    series: Sequence[Series],
    summary: Callable[[Series], Any],
    spreads: Sequence[Series],
    tell: Callable[[float, Series, Series], str],
) -> dict[str, list[Any]]:
    """Return a summary of each run's series, and for each the finding on its difference from the first."""
    values = [float(summary(own)) if len(own) else None for own in series]
    findings = [
        tell(value - values[0], spreads[0], spread)
        if value is not None and values[0] is not None and isfinite(value - values[0])
        else "unknown"
        for value, spread in zip(values[1:], spreads[1:], strict=True)
    ]
    return {"values": values, "findings": [None, *findings]}


def direction_of(difference: float) -> str:
    return "more" if difference > 0 else "less"
