"""Reported metrics: their phases, their best and last values, and their lines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hooks.metrics.direction import find_direction
from hooks.metrics.names import PHASES, REPORT_ENTRIES, find_phase
from orchestrator.disk.reports import list_reported_names
from orchestrator.report.binning import Floats
from orchestrator.report.charts.chart import COLORS
from orchestrator.report.charts.lines import Line, draw_lines
from orchestrator.report.markup import Markup
from orchestrator.tables.best_report import find_best_report
from orchestrator.units import is_number

Reports = Sequence[Mapping[str, Any]]


def group_metrics(reports: Reports) -> dict[str, dict[str, str]]:
    """Group reported metrics by name and phase: `val/accuracy` is in `accuracy`, `val`. `val/noisy`
    is a phase too. What a hook of the user reports without a phase is in `report`."""
    names = list_reported_names(reports)
    losses = [name for name in names if name.endswith("/loss") and find_phase(name)]
    phases = [*PHASES, *(name.removesuffix("/loss") for name in losses)]
    metrics: dict[str, dict[str, str]] = {}
    for full_name in names:
        if full_name in REPORT_ENTRIES:
            continue
        phase = find_phase(full_name, phases)
        name = full_name.removeprefix(f"{phase}/")
        metrics.setdefault(name, {})[phase or "report"] = full_name
    return metrics


def draw_metric(name: str, phases: Mapping[str, str], reports: Reports) -> Markup | None:
    """Draw a metric over steps, with a line per phase; None if there are no numbers."""
    drawn = select_lines(phases, reports)
    return draw_lines(name, name, drawn, "step") if drawn else None


def find_best_and_last(
    names: Iterable[str], reports: Reports, modes: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, Any] | None, Mapping[str, Any]]]:
    """Yield each reported metric with its best report, None if the direction is unknown, and its
    last report."""
    for name in names:
        mode = find_direction(name, modes)
        best = find_best_report(reports, name, mode) if mode else None
        last = next((report for report in reversed(reports) if is_number(report.get(name))), None)
        if last is not None:
            yield name, best, last


def select_points(name: str, reports: Reports) -> tuple[Floats, Floats]:
    """Return the steps at which a metric was reported as a number, and the numbers."""
    known = [report for report in reports if "step" in report and is_number(report.get(name))]
    steps = np.array([report["step"] for report in known], dtype=float)
    values = np.array([report[name] for report in known], dtype=float)
    return steps, values


def select_lines(phases: Mapping[str, str], reports: Reports) -> list[Line]:
    """Return a line for each phase of a metric that has numbers."""
    drawn = []
    for index, (phase, full_name) in enumerate(phases.items()):
        steps, values = select_points(full_name, reports)
        if len(steps):
            place = PHASES.index(phase) if phase in PHASES else len(PHASES) + index
            drawn.append(Line(phase, steps, values, COLORS[place % len(COLORS)]))
    return drawn
