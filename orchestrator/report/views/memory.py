"""Memory over the run, by rank."""

from __future__ import annotations

import pandas as pd

from orchestrator.report import page, palette
from orchestrator.report.binning import envelope
from orchestrator.report.charts.frame import choice
from orchestrator.report.charts.lines import Line, line_of, lines
from orchestrator.report.markup import Markup
from orchestrator.report.views.learning import BINS
from orchestrator.stats.aggregate.blocks import high
from orchestrator.stats.read.query import TRAINING, Rows

LINES = 8
"""The most ranks with a line of their own."""


def memory(rows: Rows) -> page.Section:
    """Each column of bytes over training's iterations. `rows` are the run's."""
    columns = [name for name in rows.numbers if name.endswith("_bytes")]
    held = rows.aggregate({name: high(name) for name in columns}, ["rank"], TRAINING, rows.blocks).dropna(
        axis=1, how="all"
    )
    if not held.columns.size:
        return page.Section(
            "memory", "Memory", "No memory was recorded: the hook memory_stats is off, or has not read yet."
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
        note = f"The {LINES} of {len(peaks):,} ranks that held most, and the band and mean of all. {note}"
    return lines(f"{column} by rank", column, drawn, "iteration", note)
