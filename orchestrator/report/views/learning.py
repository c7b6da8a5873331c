"""Learning curves: the loss and the reported metrics of a run."""

from collections.abc import Mapping
from typing import Any

from hooks.metrics.direction import explain_unknown_direction
from orchestrator.column_names import COSTS
from orchestrator.report import page
from orchestrator.report.binning import MAX_BINS, compute_envelope
from orchestrator.report.charts.chart import GREY
from orchestrator.report.charts.lines import Line, draw_lines
from orchestrator.report.markup import Markup, concatenate, element
from orchestrator.report.metrics import (
    Reports,
    draw_metric,
    find_best_and_last,
    group_metrics,
    select_lines,
)
from orchestrator.report.tables import Quantity, make_table
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.units import format_count, number_epoch


def render_learning(rows: Rows, reports: Reports, modes: Mapping[str, str]) -> page.Section:
    """Render loss and metrics over optimizer steps. `modes` has the known directions of metrics,
    `max` or `min`."""
    by_name = group_metrics(reports)
    loss = _draw_loss(rows, by_name.pop("loss", {}), reports)
    charts = [loss]
    for name, phases in by_name.items():
        if not name.endswith(COSTS):
            charts.append(draw_metric(name, phases, reports))
    if not any(charts):
        nothing = "No iteration and no report was recorded yet."
        return page.Section("learning", "Learning curves", nothing)

    drawn = element("div", *charts, class_="charts")
    content = concatenate([drawn, _make_best_table(reports, modes)])
    return page.Section("learning", "Learning curves", content)


def _draw_loss(rows: Rows, phases: Mapping[str, str], reports: Reports) -> Markup | None:
    lines = select_lines(phases, reports)
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
        values = format_count(count, "value")
        note += f" Not drawn: {count - finite:,} of {values}, because of NaN or infinity."
    return note


def _make_best_table(reports: Reports, modes: Mapping[str, str]) -> Markup | None:
    names: list[str] = []
    for phases in group_metrics(reports).values():
        names.extend(name for name in phases.values() if not name.endswith(COSTS))

    rows = []
    unknown = []
    for name, best, last in find_best_and_last(names, reports, modes):
        if best is None:
            unknown.append(name)
        rows.append((name, *_make_best_cells(name, best or {}), Quantity(name, last[name])))
    if not rows:
        return None

    columns = ("metric", "best", "epoch", "step", "last")
    table = make_table("Each metric at its best and as last reported", columns, rows)
    if not unknown:
        return table
    return concatenate([table, page.make_note(explain_unknown_direction(unknown))])


def _make_best_cells(name: str, best: Mapping[str, Any]) -> tuple[Quantity, int | None, int | None]:
    """Return the value, epoch and step of a metric's best report."""
    epoch = number_epoch(best["epoch"]) if "epoch" in best else None
    return Quantity(name, best.get(name)), epoch, best.get("step")
