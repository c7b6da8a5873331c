"""Comparison of runs: their configs, metrics, times and memory, and which of the differences are
noise. The effect of another seed is unknown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from hooks.metrics.direction import find_direction
from hooks.metrics.names import REPORT_ENTRIES
from orchestrator.column_names import COSTS
from orchestrator.tables.compared_values import (
    ComparedValues,
    Series,
    Verdict,
    compare_with_first,
    make_verdict,
    summarize,
)
from orchestrator.tables.config_differences import find_config_differences
from orchestrator.tables.cost_comparison import compare_costs, load_halves
from orchestrator.tables.query import Rows
from orchestrator.units import is_number

MIN_REPORTS = 8
"""Smallest number of reports that shows how much a metric fluctuates."""


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
    environment: Mapping[str, Any] = field(default_factory=dict)
    """What may change results besides the config."""


@dataclass(frozen=True)
class RunComparison:
    """Runs, each compared with the first. `hookyard compare --json` prints the fields."""

    runs: list[str]
    ranks: list[int]
    """Number of ranks of each run."""
    config: dict[str, list[Any]]
    """Each run's value of the settings that differ, by dotted path."""
    metrics: dict[str, ComparedValues]
    not_known: list[str]
    """Metrics without a known direction, and therefore without a best value."""
    costs: dict[str, ComparedValues]
    """Times and memory."""
    environment: dict[str, list[Any]]
    """Each run's value of the entries of the environment that differ, by dotted path."""


def compare(sides: Sequence[Side]) -> RunComparison:
    """Compare every run with the first."""
    modes = _find_modes(sides)
    runs = [side.rows for side in sides]
    halves = [load_halves(rows) for rows in runs]
    return RunComparison(
        runs=[side.name for side in sides],
        ranks=[len(table.index.unique("rank")) for table in halves],
        config=find_config_differences([side.config for side in sides]),
        metrics=_compare_metrics(sides, modes),
        not_known=[name for name, mode in modes.items() if mode is None],
        costs=compare_costs(runs, halves),
        environment=find_config_differences([side.environment for side in sides]),
    )


# Metrics


def _find_modes(sides: Sequence[Side]) -> dict[str, str | None]:
    """Return the direction of each reported metric; None if it is unknown, or if the runs
    disagree."""
    modes: dict[str, str | None] = {}
    for name in _list_metrics(sides):
        directions = {find_direction(name, side.modes) for side in sides} - {None}
        modes[name] = directions.pop() if len(directions) == 1 else None
    return modes


def _list_metrics(sides: Sequence[Side]) -> list[str]:
    names: dict[str, None] = {}
    for side in sides:
        for report in side.reports:
            metrics = [name for name, value in report.items() if _is_metric(name, value)]
            names.update(dict.fromkeys(metrics))
    return list(names)


def _is_metric(name: str, value: Any) -> bool:
    return name not in REPORT_ENTRIES and not name.endswith(COSTS) and is_number(value)


def _compare_metrics(
    sides: Sequence[Side], modes: Mapping[str, str | None]
) -> dict[str, ComparedValues]:
    compared = {}
    for name, mode in modes.items():
        curves = [_get_curve(side.reports, name) for side in sides]
        finite = [curve[np.isfinite(curve)] for curve in curves]
        if mode is not None:
            best = summarize(finite, np.max if mode == "max" else np.min)
            compared[f"{name} best"] = compare_with_first(best, finite, classify_metric_difference)
        last = summarize(curves, lambda curve: curve[-1])
        compared[f"{name} last"] = compare_with_first(last, finite, classify_metric_difference)
    return compared


def _get_curve(reports: Sequence[Mapping[str, Any]], name: str) -> Series:
    values = [report[name] for report in reports if isinstance(report.get(name), Real)]
    return np.array(values, dtype=float)


def classify_metric_difference(difference: float, first: Series, other: Series) -> Verdict:
    """Return the direction of a difference of more than three standard deviations of a report,
    otherwise `noise`.

    The variance of a report around the trend is half the mean square of successive differences in
    the second half of a curve (von Neumann 1941).
    """
    if min(len(first), len(other)) < MIN_REPORTS:
        return "unknown"
    variance = _estimate_variance(first) + _estimate_variance(other)
    return make_verdict(difference, is_real=abs(difference) > 3 * math.sqrt(variance))


def _estimate_variance(curve: Series) -> float:
    successive_differences = np.diff(curve[len(curve) // 2 :])
    return float(np.mean(successive_differences**2) / 2)
