"""The page of several runs or sweeps: their differences, and the curves of runs."""

from collections.abc import Mapping, Sequence
from itertools import chain

from hooks.metrics.names import REPORT_ENTRIES
from orchestrator.column_names import COSTS
from orchestrator.disk.reports import list_reported_names
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError
from orchestrator.report import page
from orchestrator.report.charts.chart import COLORS
from orchestrator.report.charts.lines import Line, draw_lines
from orchestrator.report.markup import Markup, concatenate, element
from orchestrator.report.metrics import Reports, select_points
from orchestrator.report.tables import make_table
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.comparison_text import ComparisonText, describe_comparison
from orchestrator.sweeps.results.folder_comparison import compare_folders
from orchestrator.tables.run_comparison import RunComparison

MAX_SIDES = len(COLORS)
"""Maximum number of runs or sweeps: each curve has a color of its own."""


def outline_comparison(folders: Sequence[RunFolder]) -> page.Page:
    """Read what the page of several runs or sweeps shows. The first is the reference.

    Raises UsageError if there are too few or too many of them, or both runs and sweeps.
    """
    if not 2 <= len(folders) <= MAX_SIDES:
        raise UsageError(f"choose 2 to {MAX_SIDES} runs or sweeps to compare, not {len(folders)}")
    comparison = compare_folders(folders)
    sections = [render_differences(describe_comparison(comparison))]
    if isinstance(comparison, RunComparison):
        reports = {folder.name: Run(folder).reports() for folder in folders}
        sections.append(render_curves(reports))
    *names, last = [folder.name for folder in folders]
    header = element("h1", f"Comparison of {', '.join(names)} and {last}")
    return page.Page("Comparison", header, sections)


def render_differences(text: ComparisonText) -> page.Section:
    """Show a table of each kind of difference."""
    pieces: list[Markup] = []
    for table in text.tables:
        if table.rows:
            pieces.append(make_table(table.title, ("", *text.names), table.rows))
        else:
            pieces.append(page.make_note(f"{table.title}: {table.empty}"))
    pieces += map(page.make_note, text.notes)
    note = f"{text.summary}. Changes are from the first. A change that may be noise says so."
    return page.Section("differences", "Differences", concatenate(pieces), note)


def render_curves(reports: Mapping[str, Reports]) -> page.Section:
    """Draw each reported metric over steps, with a line per run. `reports` is by run."""
    charts = []
    for metric in list_reported_names(chain.from_iterable(reports.values())):
        if metric in REPORT_ENTRIES or metric.endswith(COSTS):
            continue
        lines = []
        for color, (name, own) in zip(COLORS, reports.items(), strict=False):
            steps, values = select_points(metric, own)
            if len(steps):
                lines.append(Line(name, steps, values, color))
        if lines:
            charts.append(draw_lines(metric, metric, lines, "step"))
    content = element("div", *charts, class_="charts") if charts else "No run has reported yet."
    return page.Section("curves", "Learning curves", content)
