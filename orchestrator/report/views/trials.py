"""The table of a sweep's trials."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.report import page
from orchestrator.report.markup import concatenate, element
from orchestrator.report.tables import make_table
from orchestrator.sweeps.results.analysis import CONFIG

MOST_ROWS, MOST_CELLS, MOST_FAILED = 1000, 20_000, 100
"""Rows of the table, its cells, and trials that failed, at most."""
LONGEST = 80
"""Characters of an error that are shown before it is unfolded."""
COSTS = (
    "step_s",
    "train_s",
    "samples_per_s",
    "process_peak_rss_bytes",
    "peak_allocated_bytes",
    "total_s",
    "data_wait_share",
)


def render_trials(ordered: pd.DataFrame, objectives: Mapping[str, str], path: str) -> page.Section:
    """Show the table of trials, best first; of too many, the best and some that failed."""
    if not len(ordered):
        return page.Section("trials", "Trials", "No trial has begun yet.")
    columns = arrange_columns(ordered, objectives)
    most = max(1, min(MOST_ROWS, MOST_CELLS // len(columns)))
    failed = ordered["status"].isin(["failed", "lost"])
    shown = ordered[(np.arange(len(ordered)) < most) | (failed & (failed.cumsum() <= MOST_FAILED))]
    rows = [
        (element("span", str(trial), id=str(trial)), *(_format_value(name, row[name]) for name in columns))
        for trial, row in shown[columns].iterrows()
    ]
    tools = element(
        "div",
        element("input", type="search", placeholder="filter rows", aria_label="Only rows with this text"),
        "Click a heading to sort.",
        class_="tools",
    )
    drawn = make_table(
        "Each trial at its best report, best first",
        ("trial", *columns),
        rows,
        headings={name: name.removeprefix(CONFIG) for name in columns},
        class_="sortable trials",
    )
    note = ""
    if len(shown) < len(ordered):
        note = (
            f"{len(shown):,} of {len(ordered):,} trials: the best, and some that failed. All of them:"
            f" hookyard show {shlex.quote(path)} --json"
        )
    return page.Section("trials", "Trials", concatenate([tools, drawn]), note)


def arrange_columns(trials: pd.DataFrame, objectives: Mapping[str, str]) -> list[str]:
    """Return the columns that are not empty, the important ones first: the reason of a failure is one of them."""
    known = [str(name) for name in trials.columns if trials[name].notna().any()]
    values = [name for name in known if name.startswith(CONFIG)]
    first = ["status", *values, *objectives, "diverged", "error", *COSTS]
    return [name for name in dict.fromkeys([*first, *known]) if name in known]


def _format_value(name: str, value: Any) -> Any:
    if name == "status":
        return page.make_status_badge(str(value))
    if name == "error" and isinstance(value, str) and len(value) > LONGEST:
        return page.make_details(f"{value[:LONGEST]}…", value)
    # A column with empty cells makes floats of counts.
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value
