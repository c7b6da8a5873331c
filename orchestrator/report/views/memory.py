"""The memory of a run."""

from orchestrator.report import page
from orchestrator.report.binning import MAX_BINS, compute_envelope
from orchestrator.report.charts.chart import COLORS, GREY
from orchestrator.report.charts.lines import Line, draw_lines
from orchestrator.report.markup import Markup, element
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks

MAX_LINES = 8
"""Maximum number of ranks with their own line."""


def render_memory(rows: Rows) -> page.Section:
    """Render each column of bytes over training."""
    columns = [name for name in rows.numbers if name.endswith("_bytes")]
    maxima = {name: merge_blocks(name, "high") for name in columns}
    peaks = rows.aggregate(maxima, ["rank"], TRAINING, "blocks").dropna(axis=1, how="all")
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
