"""Curves over a run: loss, reported metrics, memory and other columns of rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hooks.metrics.direction import explain_unknown_direction, find_direction
from hooks.metrics.names import PHASES, find_phase
from orchestrator.column_names import COSTS
from orchestrator.disk.reports import list_reported_names
from orchestrator.report import page
from orchestrator.report.binning import Floats, compute_envelope
from orchestrator.report.figures import COLORS, GREY, SPAN_COLORS, Line, draw_lines
from orchestrator.report.markup import Markup, Quantity, concatenate, element, make_table
from orchestrator.tables.best_report import find_best_report
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks
from orchestrator.units import format_count, is_number, number_epoch

MAX_BINS = 240
"""Maximum number of points of a chart."""
MAX_LINES = 8
"""Maximum number of ranks with their own line."""
MAX_CHARTS = 30
"""Maximum number of columns with a chart."""
OTHER_VIEWS_COLUMNS = ("loss", "step_s", *SPAN_COLORS)
Reports = Sequence[Mapping[str, Any]]


def render_learning(rows: Rows, reports: Reports, modes: Mapping[str, str]) -> page.Section:
    """Render loss and metrics over optimizer steps. `modes` has the known directions of metrics,
    `max` or `min`."""
    by_name = group_metrics(reports)
    loss = _draw_loss(rows, by_name.pop("loss", {}), reports)
    metrics = [
        draw_metric(name, phases, reports)
        for name, phases in by_name.items()
        if not name.endswith(COSTS)
    ]
    charts = [loss, *metrics]
    if not any(charts):
        return page.Section(
            "learning", "Learning curves", "No iteration and no report was recorded yet."
        )
    drawn = element("div", *charts, class_="charts")
    content = concatenate([drawn, _make_best_table(reports, modes)])
    return page.Section("learning", "Learning curves", content)


def group_metrics(reports: Reports) -> dict[str, dict[str, str]]:
    """Group reported metrics by name and phase: `val/accuracy` is in `accuracy`, `val`. `val/noisy`
    is a phase too."""
    names = list_reported_names(reports)
    losses = [name for name in names if name.endswith("/loss") and find_phase(name)]
    phases = [*PHASES, *(name.removesuffix("/loss") for name in losses)]
    metrics: dict[str, dict[str, str]] = {}
    for full_name in names:
        phase = find_phase(full_name, phases)
        if phase:
            metrics.setdefault(full_name.removeprefix(f"{phase}/"), {})[phase] = full_name
    return metrics


def draw_metric(name: str, phases: Mapping[str, str], reports: Reports) -> Markup | None:
    """Draw a metric over steps, with a line per phase; None if there are no numbers."""
    drawn = _select_lines(phases, reports)
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
    known = [report for report in reports if "step" in report and is_number(report.get(name))]
    steps = np.array([report["step"] for report in known], dtype=float)
    values = np.array([report[name] for report in known], dtype=float)
    return steps, values


def _draw_loss(rows: Rows, phases: Mapping[str, str], reports: Reports) -> Markup | None:
    lines = _select_lines(phases, reports)
    note = ""
    if "loss" in rows.columns:
        note = _describe_loss(rows)
        envelope = compute_envelope(rows, "step", "loss", MAX_BINS, TRAINING)
        if len(envelope):
            lines.insert(0, Line.from_envelope("train, by step", envelope, GREY))
    return draw_lines("loss", "loss", lines, "step", note) if lines else None


def _describe_loss(rows: Rows) -> str:
    note = (
        "The band spans the losses of neighboring steps on all ranks, and the line is their mean."
    )
    # As recorded: a custom loop may record the loss only in some iterations, and `rows` has null
    # for NaN.
    columns = {"all": "count(loss)", "finite": "count(*) filter (isfinite(loss::double))"}
    count, finite = rows.aggregate(columns, (), TRAINING, "recorded").iloc[0]
    if finite < count:
        note += f" Not drawn: {count - finite:,} of {format_count(count, 'value')}, because of NaN or infinity."
    return note


def _select_lines(phases: Mapping[str, str], reports: Reports) -> list[Line]:
    drawn = []
    for index, (phase, full_name) in enumerate(phases.items()):
        steps, values = select_points(full_name, reports)
        if len(steps):
            place = PHASES.index(phase) if phase in PHASES else len(PHASES) + index
            drawn.append(Line(phase, steps, values, COLORS[place % len(COLORS)]))
    return drawn


def _make_best_table(reports: Reports, modes: Mapping[str, str]) -> Markup | None:
    names: list[str] = []
    for phases in group_metrics(reports).values():
        names.extend(name for name in phases.values() if not name.endswith(COSTS))

    rows = []
    unknown = []
    for name, best, last in find_best_and_last(names, reports, modes):
        reached = best or {}
        rows.append(
            (
                name,
                Quantity(name, reached.get(name)),
                number_epoch(best["epoch"]) if best and "epoch" in best else None,
                reached.get("step"),
                Quantity(name, last[name]),
            )
        )
        if best is None:
            unknown.append(name)
    if not rows:
        return None
    columns = ("metric", "best", "epoch", "step", "last")
    table = make_table("Each metric at its best and as last reported", columns, rows)
    if not unknown:
        return table
    return concatenate([table, page.make_note(explain_unknown_direction(unknown))])


def render_memory(rows: Rows) -> page.Section:
    """Render each column of bytes over training."""
    columns = [name for name in rows.numbers if name.endswith("_bytes")]
    maxima = {name: merge_blocks(name, "high") for name in columns}
    peaks = rows.aggregate(maxima, ["rank"], TRAINING, rows.blocks).dropna(axis=1, how="all")
    if not peaks.columns.size:
        nothing = "No memory was recorded: the hook memory_stats is off, or has not run yet."
        return page.Section("memory", "Memory", nothing)
    charts = []
    for name in peaks:
        largest = peaks[name].dropna().nlargest(MAX_LINES)
        charts.append(_draw_by_rank(rows, str(name), largest.index.tolist()))
    note = "The largest value of each stretch of iterations."
    if len(peaks) > MAX_LINES:
        note += (
            f" The {MAX_LINES} of {len(peaks):,} ranks with most memory, and the band and mean of"
            " all."
        )
    return page.Section("memory", "Memory", element("div", *charts, class_="charts"), note)


def _draw_by_rank(rows: Rows, column: str, ranks: list[int]) -> Markup:
    lines = []
    if len(ranks) == MAX_LINES:
        envelope = compute_envelope(rows, "iteration", column, MAX_BINS, TRAINING)
        lines.append(Line.from_envelope("all ranks", envelope, GREY))
    for index, rank in enumerate(sorted(ranks)):
        where = f"{TRAINING} and rank = {rank}"
        envelope = compute_envelope(rows, "iteration", column, MAX_BINS, where)
        highs = envelope["high"].to_numpy()
        lines.append(Line(f"rank {rank}", envelope.index.to_numpy(), highs, COLORS[index]))
    return draw_lines(column, column, lines, "iteration")


def render_other_columns(rows: Rows) -> page.Section:
    """Render each numeric column that no other view shows."""
    others = [name for name in rows.numbers if name not in OTHER_VIEWS_COLUMNS]
    others = [name for name in others if not name.endswith("_bytes")]
    known = {name: merge_blocks(name, "known") for name in others}
    counts = rows.aggregate(known, [], TRAINING, rows.blocks).iloc[0]
    names = [name for name in others if counts[name] > 0]
    if not names:
        return page.Section("recorded", "Other columns", "No other column was recorded.")

    charts = []
    for name in names[:MAX_CHARTS]:
        envelope = compute_envelope(rows, "iteration", name, MAX_BINS, TRAINING)
        charts.append(draw_lines(name, name, [Line.from_envelope(name, envelope)], "iteration"))
    content = [element("div", *charts, class_="charts")]
    if len(names) > MAX_CHARTS:
        content.append(page.make_note(f"Without a chart: {', '.join(names[MAX_CHARTS:])}."))
    note = "The mean of all ranks, with a band from the smallest to the largest."
    return page.Section("recorded", "Other columns", concatenate(content), note)
