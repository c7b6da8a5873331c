"""Whatever else was recorded, by hooks or by the loop: each column over the run."""

from __future__ import annotations

import pandas as pd

from orchestrator.report import page
from orchestrator.report.binning import envelope
from orchestrator.report.charts.lines import line_of, lines
from orchestrator.report.markup import element, joined
from orchestrator.report.views.learning import BINS
from orchestrator.report.views.spans import ORDER
from orchestrator.stats.query import Rows

MOST = 30
"""The most columns with a chart; a page stays small whatever hooks record."""
ELSEWHERE = ("loss", "step_s", *ORDER)


def recorded(rows: pd.DataFrame) -> page.Section:
    """A chart for each column of numbers that no other view shows. `rows` is the run's stats."""
    training = rows[rows["phase"] == "train"] if len(rows) else rows
    names = [name for name in Rows.of(training).numbers if training[name].notna().any() and name not in ELSEWHERE and not name.endswith("_bytes")]
    if not names:
        return page.Section("recorded", "Also recorded", "No other column was recorded.")
    charts = []
    for name in names[:MOST]:
        found = envelope(training["iteration"], training[name], BINS)
        charts.append(lines(name, name, [line_of(name, found)], "iteration"))
    more = page.nothing(f"Without a chart: {', '.join(names[MOST:])}.") if len(names) > MOST else None
    note = "The mean of all ranks, with a band from the smallest to the largest."
    return page.Section("recorded", "Also recorded", joined([element("div", *charts, class_="charts"), more]), note)
