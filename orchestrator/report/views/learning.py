"""Curves over a run: loss, reported metrics, memory and other columns of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hooks.metrics.direction import direction, explain_unknown_direction
from hooks.metrics.names import PHASES, phase_of
from orchestrator.report import page
from orchestrator.report.binning import Floats, compute_envelope
from orchestrator.report.figures import COLORS, GREY, SPAN_COLORS, Line, lines
from orchestrator.report.markup import Markup, element, joined
from orchestrator.report.tables import table
from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.best_report import find_best_report
from orchestrator.stats.aggregate.quantities import is_number
from orchestrator.stats.aggregate.row_blocks import select_high, select_known
from orchestrator.stats.read.query import TRAINING, Rows

BINS = 240
"""Points of a chart."""
LINES = 8
"""Ranks with their own line."""
MOST_COLUMNS = 30
"""Columns with a chart."""
ELSEWHERE = ("loss", "step_s", *SPAN_COLORS)
Reports = Sequence[Mapping[str, Any]]


def learning(rows: Rows, reports: Reports, modes: Mapping[str, str]) -> page.Section:
    """Draw loss and metrics over optimizer steps. `modes` are `max` or `min`, for the metrics that have one."""
    by_name = metrics_of(reports)
    charts = [
        _loss(rows, by_name.pop("loss", {}), reports),
        *(chart(name, phases, reports) for name, phases in by_name.items() if not quantities.get_unit(name)),
    ]
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return page.Section("learning", "Learning curves", "No iteration and no report was recorded yet.")
    content = joined([element("div", *drawn, class_="charts"), _bests(reports, modes)])
    return page.Section("learning", "Learning curves", content)


def metrics_of(reports: Reports) -> dict[str, dict[str, str]]:
    """Return reported metrics by name and phase: `accuracy` -> `val` -> `val/accuracy`. `val/noisy` is a phase too."""
    names = dict.fromkeys(name for report in reports for name in report)
    phases = [*PHASES, *(name.removesuffix("/loss") for name in names if name.endswith("/loss") and phase_of(name))]
    metrics: dict[str, dict[str, str]] = {}
    for full in names:
        if phase := phase_of(full, phases):
            metrics.setdefault(full.removeprefix(f"{phase}/"), {})[phase] = full
    return metrics


def chart(name: str, phases: Mapping[str, str], reports: Reports) -> Markup | None:
    """Draw a metric over steps, a line for each phase; None without numbers."""
    drawn = _reported(phases, reports)
    return lines(name, name, drawn, "step") if drawn else None


def best(name: str, reports: Reports, modes: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the report in which a metric is best; None if none has it, or its direction is unknown."""
    mode = direction(name, modes)
    return find_best_report(reports, name, mode) if mode else None


def last(name: str, reports: Reports) -> Mapping[str, Any] | None:
    return next((report for report in reversed(reports) if is_number(report.get(name))), None)


def points(name: str, reports: Reports) -> tuple[Floats, Floats]:
    pairs = [(report["step"], report[name]) for report in reports if is_number(report.get(name)) and "step" in report]
    steps, values = np.array(pairs, dtype=float).reshape(-1, 2).T
    return steps, values


def _loss(rows: Rows, phases: Mapping[str, str], reports: Reports) -> Markup | None:
    drawn, note = _reported(phases, reports), ""
    if "loss" in rows.columns:
        bins = compute_envelope(rows, "step", "loss", BINS, TRAINING)
        count = int(rows.aggregate({"rows": "coalesce(sum(rows), 0)"}, [], TRAINING, rows.blocks)["rows"].iloc[0])
        note = (
            "The band is from the smallest to the largest loss of neighboring steps on all ranks, the line their mean."
        )
        if bins.count < count:
            note += f" Not drawn: {count - bins.count:,} of {count:,} values, which are not finite."
        if len(bins.at):
            drawn = [Line.of("train, by step", bins, GREY), *drawn]
    return lines("loss", "loss", drawn, "step", note) if drawn else None


def _reported(phases: Mapping[str, str], reports: Reports) -> list[Line]:
    drawn = []
    for place, (phase, full) in enumerate(phases.items()):
        steps, values = points(full, reports)
        if len(steps):
            color = COLORS[PHASES.index(phase) if phase in PHASES else (len(PHASES) + place) % len(COLORS)]
            drawn.append(Line(phase, steps, values, color))
    return drawn


def _bests(reports: Reports, modes: Mapping[str, str]) -> Markup | None:
    names = [
        full
        for name, phases in metrics_of(reports).items()
        if not quantities.get_unit(name)
        for full in phases.values()
    ]
    latest = {name: report for name in names if (report := last(name, reports)) is not None}
    if not latest:
        return None
    bests = {name: best(name, reports, modes) or {} for name in latest}
    rows = [
        (name, report.get(name), report.get("epoch"), report.get("step"), latest[name][name])
        for name, report in bests.items()
    ]
    drawn = table("Each metric at its best and as last reported", ("metric", "best", "epoch", "step", "last"), rows)
    unknown = [name for name, report in bests.items() if not report]
    return joined([drawn, page.empty_note(explain_unknown_direction(unknown)) if unknown else None])


def memory(rows: Rows) -> page.Section:
    """Draw each column of bytes over training."""
    columns = [name for name in rows.numbers if name.endswith("_bytes")]
    peaks = rows.aggregate({name: select_high(name) for name in columns}, ["rank"], TRAINING, rows.blocks)
    peaks = peaks.dropna(axis=1, how="all")
    if not peaks.columns.size:
        nothing = "No memory was recorded: the hook memory_stats is off, or has not run yet."
        return page.Section("memory", "Memory", nothing)
    charts = [_by_rank(rows, str(name), peaks[name].dropna().nlargest(LINES).index.tolist()) for name in peaks]
    note = "The largest value of each stretch of iterations."
    if len(peaks) > LINES:
        note += f" The {LINES} of {len(peaks):,} ranks with most memory, and the band and mean of all."
    return page.Section("memory", "Memory", element("div", *charts, class_="charts"), note)


def _by_rank(rows: Rows, column: str, ranks: list[int]) -> Markup:
    drawn = []
    for place, rank in enumerate(sorted(ranks)):
        bins = compute_envelope(rows, "iteration", column, BINS, f"{TRAINING} and rank = {rank}")
        drawn.append(Line(f"rank {rank}", bins.at, bins.high, COLORS[place]))
    if len(ranks) == LINES:
        drawn.insert(0, Line.of("all ranks", compute_envelope(rows, "iteration", column, BINS, TRAINING), GREY))
    return lines(column, column, drawn, "iteration")


def recorded(rows: Rows) -> page.Section:
    """Draw each column of numbers that no other view shows."""
    others = [name for name in rows.numbers if name not in ELSEWHERE and not name.endswith("_bytes")]
    held = rows.aggregate({name: select_known(name) for name in others}, [], TRAINING, rows.blocks).iloc[0]
    names = [name for name in others if held[name] > 0]
    if not names:
        return page.Section("recorded", "Other columns", "No other column was recorded.")
    charts = [
        lines(name, name, [Line.of(name, compute_envelope(rows, "iteration", name, BINS, TRAINING))], "iteration")
        for name in names[:MOST_COLUMNS]
    ]
    more = f"Without a chart: {', '.join(names[MOST_COLUMNS:])}." if len(names) > MOST_COLUMNS else ""
    note = "The mean of all ranks, with a band from the smallest to the largest."
    content = joined([element("div", *charts, class_="charts"), page.empty_note(more) if more else None])
    return page.Section("recorded", "Other columns", content, note)
