"""The time of a training iteration in the best trials."""

import pandas as pd

from orchestrator.report import page
from orchestrator.report.charts.stacks import draw_stacks


def render_spending(spans: pd.DataFrame) -> page.Section:
    """Show the mean `spans` of a training iteration, a row for each of the best trials."""
    title = "Time per iteration"
    if not len(spans):
        return page.Section("spending", title, "No trial has recorded spans yet.")
    note = "Mean across all ranks, of the best trials, the best first."
    drawn = draw_stacks("Mean iteration of each trial", spans.fillna(0.0), "trial", note)
    return page.Section("spending", title, drawn)
