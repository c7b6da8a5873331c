"""The trials of a sweep: a table, and details of each."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.report import page, tables
from orchestrator.report.markup import Markup, element, joined
from orchestrator.report.selection import fitting
from orchestrator.sweeps.results.analysis import CONFIG

MOST = 100
"""Trials with details; and as many that failed."""
MOST_ROWS = 1000
CELLS, DETAILED_CELLS = 20_000, 4_000
"""Cells of the table, and of the details."""
ASIDE = ("last/", "train/", "memory/", "test/", "throughput/", "stats/")
"""Columns that are hidden at first."""
COSTS = (
    "step_s",
    "train_s",
    "samples_per_s",
    "process_peak_rss_bytes",
    "peak_allocated_bytes",
    "total_s",
    "data_wait_share",
)


def trials(table: pd.DataFrame, objectives: Mapping[str, str], path: str) -> page.Section:
    """Show the table of trials, best first; of too many the best, and those with details."""
    if not len(table):
        return page.Section("trials", "Trials", "No trial has begun yet.")
    columns = ordered(table, objectives)
    headings = {name: name.removeprefix(CONFIG) for name in columns}
    detailed = set(detailed_trials(table, len(columns)))
    most = fitting(len(columns), MOST_ROWS, CELLS)
    shown = table[(np.arange(len(table)) < most) | table.index.isin(detailed)]
    rows = [
        (
            element("a", str(trial), href=f"#{trial}") if trial in detailed else str(trial),
            *(_value(name, row[name]) for name in columns),
        )
        for trial, row in shown[columns].iterrows()
    ]
    drawn = tables.table(
        "Each trial at its best report, best first",
        ("trial", *columns),
        rows,
        headings=headings,
        marks=[{"data_trial": str(trial)} for trial in shown.index],
        aside=[name for name in columns if _is_aside(name, objectives)],
        class_="sortable choosable",
    )
    return page.Section("trials", "Trials", drawn, _describe_omitted(len(shown), len(table), path))


def _describe_omitted(shown: int, count: int, path: str) -> str:
    if shown == count:
        return ""
    return (
        f"{shown:,} of {count:,} trials: the best, and some that failed. All of them:"
        f" hookyard show {shlex.quote(path)} --json"
    )


def ordered(table: pd.DataFrame, objectives: Mapping[str, str]) -> list[str]:
    """Return the columns that are not empty, the important ones first."""
    known = [str(name) for name in table.columns if table[name].notna().any()]
    first = ["status", *(name for name in known if name.startswith(CONFIG)), *objectives, *COSTS]
    return [name for name in dict.fromkeys([*first, *known]) if name in known]


def details(table: pd.DataFrame, objectives: Mapping[str, str], path: str) -> page.Section:
    """Show values, metrics, costs and error of each trial, and commands to look further."""
    if not len(table):
        return page.Section("details", "Trial details", "No trial has begun yet.")
    columns = ordered(table, objectives)
    detailed = detailed_trials(table, len(columns))
    pieces = [
        _trial(str(trial), {str(name): value for name, value in row.dropna().items()}, path)
        for trial, row in table.loc[detailed, columns].astype(object).iterrows()
    ]
    if len(detailed) < len(table):
        words = (
            f"{len(detailed):,} of {len(table):,} trials: the best, and some that failed. For others: hookyard show"
            f" {shlex.quote(path)} --trial NAME"
        )
        pieces.insert(0, page.empty_note(words))
    return page.Section("details", "Trial details", joined(pieces))


def detailed_trials(table: pd.DataFrame, columns: int) -> list[str]:
    """Return the trials with details: the best ones, and as many that failed."""
    most, failed = fitting(columns, MOST, DETAILED_CELLS), table["status"].isin(["failed", "lost"])
    return [*map(str, table.index[(np.arange(len(table)) < most) | (failed & (failed.cumsum() <= most))])]


def _trial(name: str, values: Mapping[str, Any], path: str) -> Markup:
    chosen = {key.removeprefix(CONFIG): value for key, value in values.items() if key.startswith(CONFIG)}
    taken = {key: value for key, value in values.items() if "/" not in key and key not in ("error", "status")}
    folder, error = shlex.quote(f"{path}/trials/{name}"), values.get("error")
    facts = [tables.facts("Values", chosen), _metrics(values), tables.facts("Costs", taken)]
    return element(
        "details",
        element(
            "summary",
            element("b", name),
            " ",
            page.status(str(values.get("status", ""))),
            " ",
            tables.list_values(chosen),
        ),
        page.failure(f"Error of {name}", error),
        element("div", *facts, class_="charts"),
        element("p", element("code", f"hookyard report {folder}")),
        element("p", element("code", f"hookyard show {shlex.quote(path)} --trial {name} --yaml > again.yaml")),
        class_="trial",
        id=name,
    )


def _metrics(values: Mapping[str, Any]) -> Markup:
    """Show the metrics at the trial's best and last report."""
    metrics = dict.fromkeys(key.removeprefix("last/") for key in values if "/" in key and not key.startswith(CONFIG))
    rows = [
        (name, tables.Quantity(name, values.get(name)), tables.Quantity(name, values.get(f"last/{name}")))
        for name in metrics
    ]
    return tables.table("Metrics", ("metric", "at its best report", "last"), rows)


def _value(name: str, value: Any) -> Any:
    if name == "status":
        return page.status(str(value))
    return f"{value[:80]}…" if name == "error" and isinstance(value, str) and len(value) > 80 else _whole(value)


def _whole(value: Any) -> Any:
    """Restore a count from a float, which a column with empty cells makes of it."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def _is_aside(name: str, objectives: Mapping[str, str]) -> bool:
    costs = ("/samples_per_s", "/iteration_s", "/peak_rss_bytes", "/rss_bytes")
    return name not in objectives and (name.startswith(ASIDE) or name.endswith(costs))
