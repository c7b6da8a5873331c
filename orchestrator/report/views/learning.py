"""Curves over a run: loss, reported metrics, memory and other columns of rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hooks.metrics.direction import direction, explain_unknown_direction
from hooks.metrics.names import PHASES, phase_of
from orchestrator.report import page
from orchestrator.report.binning import Floats, compute_envelope
from orchestrator.report.figures import COLORS, GREY, SPAN_COLORS, Line, draw_lines
from orchestrator.report.markup import Markup, Quantity, concatenate, element, make_table
from orchestrator.tables.best_report import find_best_report
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks
from orchestrator.units import COSTS, is_number

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
    charts = [
        _draw_loss(rows, by_name.pop("loss", {}), reports),
        *(
            draw_metric(name, phases, reports)
            for name, phases in by_name.items()
            if not name.endswith(COSTS)
        ),
    ]
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return page.Section(
            "learning", "Learning curves", "No iteration and no report was recorded yet."
        )
    content = concatenate(
        [element("div", *drawn, class_="charts"), _make_best_table(reports, modes)]
    )
    return page.Section("learning", "Learning curves", content)


def group_metrics(reports: Reports) -> dict[str, dict[str, str]]:
    """Group reported metrics by name and phase: `val/accuracy` is in `accuracy`, `val`. `val/noisy`
    is a phase too."""
    names = dict.fromkeys(name for report in reports for name in report)
    phases = [
        *PHASES,
        *(
            name.removesuffix("/loss")
            for name in names
            if name.endswith("/loss") and phase_of(name)
        ),
    ]
    metrics: dict[str, dict[str, str]] = {}
    for full_name in names:
        if phase := phase_of(full_name, phases):
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
        mode = direction(name, modes)
        best = find_best_report(reports, name, mode) if mode else None
        last = next((report for report in reversed(reports) if is_number(report.get(name))), None)
        if last is not None:
            yield name, best, last


def select_points(name: str, reports: Reports) -> tuple[Floats, Floats]:
    pairs = [
        (report["step"], report[name])
        for report in reports
        if is_number(report.get(name)) and "step" in report
    ]
    steps, values = np.array(pairs, dtype=float).reshape(-1, 2).T
    return steps, values


def _draw_loss(rows: Rows, phases: Mapping[str, str], reports: Reports) -> Markup | None:
    drawn, note = _select_lines(phases, reports), ""
    if "loss" in rows.columns:
        bins = compute_envelope(rows, "step", "loss", MAX_BINS, TRAINING)
        note = "The band spans the losses of neighboring steps on all ranks, and the line is their mean."
        # As recorded: a custom loop may record the loss only in some iterations, and `rows` has
        # null for NaN.
        count, finite = rows.aggregate(
            {"all": "count(loss)", "finite": "count(*) filter (isfinite(loss::double))"},
            (),
            TRAINING,
            "recorded",
        ).iloc[0]
        if finite < count:
            note += f" Not drawn: {count - finite:,} of {count:,} values, which are not finite."
        if len(bins):
            drawn = [Line.of("train, by step", bins, GREY), *drawn]
    return draw_lines("loss", "loss", drawn, "step", note) if drawn else None


def _select_lines(phases: Mapping[str, str], reports: Reports) -> list[Line]:
    drawn = []
    for index, (phase, full_name) in enumerate(phases.items()):
        steps, values = select_points(full_name, reports)
        if len(steps):
            color = COLORS[
                PHASES.index(phase) if phase in PHASES else (len(PHASES) + index) % len(COLORS)
            ]
            drawn.append(Line(phase, steps, values, color))
    return drawn


def _make_best_table(reports: Reports, modes: Mapping[str, str]) -> Markup | None:
    by_phase = group_metrics(reports).values()
    names = [name for phases in by_phase for name in phases.values() if not name.endswith(COSTS)]
    rows, unknown = [], []
    for name, best, last in find_best_and_last(names, reports, modes):
        reached = best or {}
        place = map(reached.get, ("epoch", "step"))
        rows.append((name, Quantity(name, reached.get(name)), *place, Quantity(name, last[name])))
        if best is None:
            unknown.append(name)
    if not rows:
        return None
    columns = ("metric", "best", "epoch", "step", "last")
    drawn = make_table("Each metric at its best and as last reported", columns, rows)
    return concatenate(
        [drawn, page.make_note(explain_unknown_direction(unknown)) if unknown else None]
    )


def render_memory(rows: Rows) -> page.Section:
    """Render each column of bytes over training."""
    columns = [name for name in rows.numbers if name.endswith("_bytes")]
    peaks = rows.aggregate(
        {name: merge_blocks(name, "high") for name in columns}, ["rank"], TRAINING, rows.blocks
    )
    peaks = peaks.dropna(axis=1, how="all")
    if not peaks.columns.size:
        nothing = "No memory was recorded: the hook memory_stats is off, or has not run yet."
        return page.Section("memory", "Memory", nothing)
    charts = [
        _draw_by_rank(rows, str(name), peaks[name].dropna().nlargest(MAX_LINES).index.tolist())
        for name in peaks
    ]
    note = "The largest value of each stretch of iterations."
    if len(peaks) > MAX_LINES:
        note += f" The {MAX_LINES} of {len(peaks):,} ranks with most memory, and the band and mean of all."
    return page.Section("memory", "Memory", element("div", *charts, class_="charts"), note)


def _draw_by_rank(rows: Rows, column: str, ranks: list[int]) -> Markup:
    drawn = []
    for index, rank in enumerate(sorted(ranks)):
        bins = compute_envelope(
            rows, "iteration", column, MAX_BINS, f"{TRAINING} and rank = {rank}"
        )
        drawn.append(
            Line(f"rank {rank}", bins.index.to_numpy(), bins["high"].to_numpy(), COLORS[index])
        )
    if len(ranks) == MAX_LINES:
        drawn.insert(
            0,
            Line.of(
                "all ranks", compute_envelope(rows, "iteration", column, MAX_BINS, TRAINING), GREY
            ),
        )
    return draw_lines(column, column, drawn, "iteration")


def render_other_columns(rows: Rows) -> page.Section:
    """Render each numeric column that no other view shows."""
    others = [
        name
        for name in rows.numbers
        if name not in OTHER_VIEWS_COLUMNS and not name.endswith("_bytes")
    ]
    counts = rows.aggregate(
        {name: merge_blocks(name, "known") for name in others}, [], TRAINING, rows.blocks
    ).iloc[0]
    names = [name for name in others if counts[name] > 0]
    if not names:
        return page.Section("recorded", "Other columns", "No other column was recorded.")
    charts = [
        draw_lines(
            name,
            name,
            [Line.of(name, compute_envelope(rows, "iteration", name, MAX_BINS, TRAINING))],
            "iteration",
        )
        for name in names[:MAX_CHARTS]
    ]
    more = f"Without a chart: {', '.join(names[MAX_CHARTS:])}." if len(names) > MAX_CHARTS else ""
    note = "The mean of all ranks, with a band from the smallest to the largest."
    content = concatenate(
        [element("div", *charts, class_="charts"), page.make_note(more) if more else None]
    )
    return page.Section("recorded", "Other columns", content, note)
