"""The columns of rows that no other section shows."""

from orchestrator.report import page
from orchestrator.report.binning import MAX_BINS, compute_envelope
from orchestrator.report.charts.lines import Line, draw_lines
from orchestrator.report.charts.stacks import SPAN_COLORS
from orchestrator.report.markup import concatenate, element
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks

MAX_CHARTS = 30
"""Maximum number of columns with a chart."""
_SHOWN_ELSEWHERE = ("loss", "step_s", *SPAN_COLORS)
"""Columns that other sections show, besides those of bytes."""


def render_other_columns(rows: Rows) -> page.Section:
    """Render each numeric column that no other section shows."""
    others = []
    for name in rows.numbers:
        if name not in _SHOWN_ELSEWHERE and not name.endswith("_bytes"):
            others.append(name)

    known = {name: merge_blocks(name, "known") for name in others}
    counts = rows.aggregate(known, [], TRAINING, "blocks").iloc[0]
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
