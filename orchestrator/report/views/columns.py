"""Memory and other columns of rows over the run."""

from __future__ import annotations

import pandas as pd

from orchestrator.report import page, palette
from orchestrator.report.binning import envelope
from orchestrator.report.charts.frame import choice
from orchestrator.report.charts.lines import Line, line_of, lines
from orchestrator.report.markup import Markup, element, joined
from orchestrator.report.views.learning import BINS
from orchestrator.report.views.time import ORDER
from orchestrator.stats.aggregate.blocks import high, known
from orchestrator.stats.read.query import TRAINING, Rows

LINES = 8
"""Ranks with their own line."""


def memory(rows: Rows) -> page.Section:
    """Draw each column of bytes over training."""
    columns = [name for name in rows.numbers if name.endswith("_bytes")]
    held = rows.aggregate({name: high(name) for name in columns}, ["rank"], TRAINING, rows.blocks).dropna(
        axis=1, how="all"
    )
    if not held.columns.size:
        return page.Section(
            "memory", "Memory", "No memory was recorded: the hook memory_stats is off, or has not run yet."
        )
    panels = [(str(name), _chart(rows, str(name), held[name].dropna())) for name in held]
    return page.Section("memory", "Memory", choice("memory", panels))


def _chart(rows: Rows, column: str, held: pd.Series[float]) -> Markup:
    peaks = held.sort_values(ascending=False, kind="stable")
    found = {
        rank: envelope(rows, "iteration", column, BINS, f"{TRAINING} and rank = {rank}")
        for rank in sorted(peaks.index[:LINES])
    }
    drawn = [Line(f"rank {rank}", one.at, one.high, kind=place) for place, (rank, one) in enumerate(found.items())]
    note = (
        "The largest value of each stretch of iterations."
        if any(len(one.at) < one.count for one in found.values())
        else ""
    )
    if len(peaks) > LINES:
        drawn.insert(0, line_of("all ranks", envelope(rows, "iteration", column, BINS, TRAINING), kind=palette.BACK))
        note = f"The {LINES} of {len(peaks):,} ranks with most memory, and the band and mean of all. {note}"
    return lines(f"{column} by rank", column, drawn, "iteration", note)


MOST_COLUMNS = 30
"""Columns with a chart."""
ELSEWHERE = ("loss", "step_s", *ORDER)


def recorded(rows: Rows) -> page.Section:
    """Draw each column of numbers that no other view shows."""
    others = [name for name in rows.numbers if name not in ELSEWHERE and not name.endswith("_bytes")]
    held = rows.aggregate({name: known(name) for name in others}, [], TRAINING, rows.blocks).iloc[0]
    names = [name for name in others if held[name] > 0]
    if not names:
        return page.Section("recorded", "Other columns", "No other column was recorded.")
    charts = [
        lines(name, name, [line_of(name, envelope(rows, "iteration", name, BINS, TRAINING))], "iteration")
        for name in names[:MOST_COLUMNS]
    ]
    more = (
        page.empty_note(f"Without a chart: {', '.join(names[MOST_COLUMNS:])}.") if len(names) > MOST_COLUMNS else None
    )
    note = "The mean of all ranks, with a band from the smallest to the largest."
    return page.Section("recorded", "Other columns", joined([element("div", *charts, class_="charts"), more]), note)
