"""The learning curves of a sweep's trials."""

from collections.abc import Mapping

from orchestrator.report import page
from orchestrator.report.charts.curves import draw_curves
from orchestrator.report.markup import element
from orchestrator.report.metrics import Reports, select_points
from orchestrator.report.trial_selection import describe_lines


def render_progress(
    reports: Mapping[str, Reports], objectives: Mapping[str, str], count: int, best: str | None
) -> page.Section:
    """Draw the curves of the sweep's metrics. `reports` is by trial, best first, of `count` trials
    with reports."""
    charts = []
    note = describe_lines(best, len(reports), count)
    for metric in objectives:
        points = {}
        for trial, own in reports.items():
            steps, values = select_points(metric, own)
            if len(steps):
                points[trial] = (steps, values)
        if points:
            charts.append(draw_curves(metric, metric, points, best, note))
    content = element("div", *charts) if charts else "No trial has reported yet."
    return page.Section("progress", "Learning curves", content)
