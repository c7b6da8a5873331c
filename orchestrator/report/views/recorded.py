"""Whatever else was recorded, by hooks or by the loop: each column over the run."""

from __future__ import annotations

from orchestrator.report import page
from orchestrator.report.binning import envelope
from orchestrator.report.charts.lines import line_of, lines
from orchestrator.report.markup import element, joined
from orchestrator.report.views.learning import BINS
from orchestrator.report.views.spans import ORDER
from orchestrator.stats.aggregate.blocks import known
from orchestrator.stats.read.query import TRAINING, Rows

MOST = 30
"""The most columns with a chart; a page stays small whatever hooks record."""
ELSEWHERE = ("loss", "step_s", *ORDER)


def recorded(rows: Rows) -> page.Section:
    """A chart for each column of numbers that no other view shows. `rows` are the run's."""
    others = [name for name in rows.numbers if name not in ELSEWHERE and not name.endswith("_bytes")]
    held = rows.aggregate({name: known(name) for name in others}, [], TRAINING, rows.blocks).iloc[0]
    names = [name for name in others if held[name] > 0]
    if not names:
        return page.Section("recorded", "Other columns", "No other column was recorded.")
    charts = [
        lines(name, name, [line_of(name, envelope(rows, "iteration", name, BINS, TRAINING))], "iteration")
        for name in names[:MOST]
    ]
    more = page.nothing(f"Without a chart: {', '.join(names[MOST:])}.") if len(names) > MOST else None
    note = "The mean of all ranks, with a band from the smallest to the largest."
    return page.Section("recorded", "Other columns", joined([element("div", *charts, class_="charts"), more]), note)
