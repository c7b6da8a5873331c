"""The page of a comparison of runs or sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from hooks.metrics.direction import explain_unknown_direction
from orchestrator.report import page
from orchestrator.report.charts.lines import Line, lines
from orchestrator.report.markup import Markup, element, joined
from orchestrator.report.palette import BACK
from orchestrator.report.tables import table
from orchestrator.report.views.learning import points
from orchestrator.runs.result import Result, Run, compare_runs
from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.quantities import is_number
from orchestrator.sweeps.results.comparison import compare_sweeps
from orchestrator.sweeps.results.result import Sweep

PARTS = {
    "config": ("config", "no difference", "Differences of the experiments"),
    "chosen": ("best trial", "no values", "The best trial of each, with its values"),
    "metrics": ("metrics", "none yet", "Metrics, with the change from the first"),
    "same_values": (
        "with the same values",
        "no trials",
        "Mean difference from the first one's trials with the same values",
    ),
    "costs": ("costs", "none yet", "Costs, with the change from the first"),
}
"""Part of a comparison -> title, text if it is empty, and caption."""


def runs_page(runs: Sequence[Run], made: str) -> str:
    """Return the page that compares runs; `made` is the time."""
    names = _names(runs)
    reports = [run.reports() for run in runs]
    metrics = dict.fromkeys(
        name for own in reports for line in own for name in line if "/" in name and not quantities.unit(name)
    )
    charts = [_chart(metric, "step", [points(metric, own) for own in reports], names) for metric in metrics]
    return _page(compare_runs(runs), [run.path for run in runs], "Curves", charts, made)


def sweeps_page(sweeps: Sequence[Sweep], made: str) -> str:
    """Return the page that compares sweeps; `made` is the time."""
    names = _names(sweeps)
    objectives = dict(entry for sweep in sweeps for entry in sweep.objectives)
    tables = [sweep.trials for sweep in sweeps]
    charts = []
    for metric, mode in objectives.items():
        reached = [table[metric].to_numpy(dtype=float) if metric in table else np.empty(0) for table in tables]
        charts.append(_chart(metric, "trial", [best_so_far(values, mode) for values in reached], names))
    return _page(compare_sweeps(sweeps), [sweep.path for sweep in sweeps], "Best so far, by trial", charts, made)


def best_so_far(values: Any, mode: str) -> tuple[Any, Any]:
    """Return the numbers, from 1, of trials with a value, and the best value up to each."""
    known = np.flatnonzero(np.isfinite(values))
    return known + 1, (np.maximum if mode == "max" else np.minimum).accumulate(values[known])


def _names(results: Sequence[Result]) -> list[str]:
    names = [result.name for result in results]
    return names if len({*names}) == len(names) else [result.path for result in results]


def _page(
    found: Mapping[str, Any], paths: Sequence[str], title: str, charts: Sequence[Markup | None], made: str
) -> str:
    drawn = [*filter(None, charts)]
    sections = [
        *(_section(part, found) for part in PARTS if part in found),
        page.Section(
            "curves", title, element("div", *drawn, class_="charts") if drawn else "Nothing has been reported yet."
        ),
    ]
    names = " and ".join(name for name, _ in headings(found))
    entries = [
        element("li", element("b", name), f" {path} ({what})")
        for (name, what), path in zip(headings(found), paths, strict=True)
    ]
    return page.page(names, ", ".join(paths), joined([element("h1", names), element("ul", *entries)]), sections, made)


def _section(part: str, found: Mapping[str, Any]) -> page.Section:
    title, nothing, caption = PARTS[part]
    rows = [(name, *format_entry(name, entry)) for name, entry in found[part].items()]
    columns = ("", *(f"{number}/{name}" for number, (name, _) in enumerate(headings(found))))
    drawn = (
        table(caption, columns, rows, headings={column: column.partition("/")[2] for column in columns if column})
        if rows
        else f"{title}: {nothing}."
    )
    note = explain_unknown_direction(found["not_known"]) if part == "metrics" and found.get("not_known") else ""
    return page.Section(part, title.capitalize(), drawn, note)


def _chart(metric: str, x_name: str, series: Sequence[tuple[Any, Any]], names: Sequence[str]) -> Markup | None:
    drawn = [
        Line(name, x, y, kind=place % BACK, dotted=True)
        for place, (name, (x, y)) in enumerate(zip(names, series, strict=True))
        if len(x)
    ]
    return lines(metric, metric, drawn, x_name) if drawn else None


def headings(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name of each run or sweep with its number of ranks or trials."""
    if "runs" in found:
        return [
            (name, f"{ranks} {'rank' if ranks == 1 else 'ranks'}")
            for name, ranks in zip(found["runs"], found["ranks"], strict=True)
        ]
    counts = [
        ", ".join(f"{count} {status}" for status, count in trials.items()) or "no trial" for trials in found["trials"]
    ]
    return [*zip(found["sweeps"], counts, strict=True)]


def format_entry(name: str, entry: Any) -> list[str]:
    """Format the value of each run or sweep, with its change from the first."""
    if not isinstance(entry, Mapping):
        return [
            quantities.text("", value) if is_number(value) else "-" if value is None else str(value) for value in entry
        ]
    if "trials" in entry:
        rows = zip(entry["values"], entry["trials"], entry["findings"], strict=True)
        return [
            "-" if value is None else f"{value:+.4g} in {trials} trials, {finding}" for value, trials, finding in rows
        ]
    first = entry["values"][0]
    return [
        _change(name, value, first, finding) for value, finding in zip(entry["values"], entry["findings"], strict=True)
    ]


def _change(name: str, value: float | None, first: float | None, finding: str | None) -> str:
    shown = quantities.text(name, value) or ("-" if value is None else "nan")
    if finding is None or value is None or not first or not isfinite(value - first):
        return shown
    if value == first and finding == "unknown":
        return f"{shown} (equal)"
    change = f"{value / first - 1:+.1%}"
    return f"{shown} ({change})" if finding in ("less", "more") else f"{shown} ({change}, {finding})"
