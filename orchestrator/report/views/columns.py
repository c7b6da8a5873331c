"""Memory and other columns of rows over the run."""

from __future__ import annotations

from orchestrator.report import page
from orchestrator.report.binning import envelope
from orchestrator.report.figures import COLORS, GREY, SPAN_COLORS, Line, lines
from orchestrator.report.markup import Markup, element, joined
from orchestrator.report.views.learning import BINS
from orchestrator.stats.aggregate.blocks import high, known
from orchestrator.stats.read.query import TRAINING, Rows

LINES = 8
"""Ranks with their own line."""
MOST_COLUMNS = 30
"""Columns with a chart."""
ELSEWHERE = ("loss", "step_s", *SPAN_COLORS)


def memory(rows: Rows) -> page.Section:
    """Draw each column of bytes over training."""
    columns = [name for name in rows.numbers if name.endswith("_bytes")]
    peaks = rows.aggregate({name: high(name) for name in columns}, ["rank"], TRAINING, rows.blocks)
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
        bins = envelope(rows, "iteration", column, BINS, f"{TRAINING} and rank = {rank}")
        drawn.append(Line(f"rank {rank}", bins.at, bins.high, COLORS[place]))
    if len(ranks) == LINES:
        drawn.insert(0, Line.of("all ranks", envelope(rows, "iteration", column, BINS, TRAINING), GREY))
    return lines(column, column, drawn, "iteration")


def recorded(rows: Rows) -> page.Section:
    """Draw each column of numbers that no other view shows."""
    others = [name for name in rows.numbers if name not in ELSEWHERE and not name.endswith("_bytes")]
    held = rows.aggregate({name: known(name) for name in others}, [], TRAINING, rows.blocks).iloc[0]
    names = [name for name in others if held[name] > 0]
    if not names:
        return page.Section("recorded", "Other columns", "No other column was recorded.")
    charts = [
        lines(name, name, [Line.of(name, envelope(rows, "iteration", name, BINS, TRAINING))], "iteration")
        for name in names[:MOST_COLUMNS]
    ]
    more = f"Without a chart: {', '.join(names[MOST_COLUMNS:])}." if len(names) > MOST_COLUMNS else ""
    note = "The mean of all ranks, with a band from the smallest to the largest."
    content = joined([element("div", *charts, class_="charts"), page.empty_note(more) if more else None])
    return page.Section("recorded", "Other columns", content, note)
