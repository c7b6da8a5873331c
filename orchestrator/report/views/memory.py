"""Memory over the run, by rank."""

from __future__ import annotations

import pandas as pd

from orchestrator.report import page, palette
from orchestrator.report.binning import envelope
from orchestrator.report.charts.frame import choice
from orchestrator.report.charts.lines import Line, line_of, lines
from orchestrator.report.markup import Markup
from orchestrator.report.views.learning import BINS

LINES = 8
"""The most ranks with a line of their own."""


def memory(rows: pd.DataFrame) -> page.Section:
    """Each column of bytes over training's iterations. `rows` is the run's stats."""
    training = rows[rows["phase"] == "train"] if len(rows) else rows
    columns = [name for name in training.columns if str(name).endswith("_bytes") and training[name].notna().any()]
    if not columns:
        return page.Section("memory", "Memory", "No memory was recorded: the hook memory_stats is off, or has not read yet.")
    panels = [(str(name), _chart(training, str(name))) for name in columns]
    return page.Section("memory", "Memory", choice("memory", panels))


def _chart(rows: pd.DataFrame, column: str) -> Markup:
    known = rows.loc[rows[column].notna(), ["rank", "iteration", column]]
    peaks = known.groupby("rank")[column].max().sort_values(ascending=False, kind="stable")
    chosen = sorted(peaks.index[:LINES])
    drawn = [_line(known[known["rank"] == rank], column, f"rank {rank}", place) for place, rank in enumerate(chosen)]
    shortened = any(len(line.x) < (known["rank"] == chosen[0]).sum() for line in drawn)
    note = "The largest value of each stretch of iterations." if shortened else ""
    if len(peaks) > LINES:
        drawn.insert(0, line_of("all ranks", envelope(known["iteration"], known[column], BINS), kind=palette.BACK))
        note = f"The {LINES} of {len(peaks):,} ranks that held most, and the band and mean of all. {note}"
    return lines(f"{column} by rank", column, drawn, "iteration", note)


def _line(own: pd.DataFrame, column: str, name: str, kind: int) -> Line:
    found = envelope(own["iteration"], own[column], BINS)
    return Line(name, found.at, found.high, kind=kind)
