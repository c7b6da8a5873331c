"""The table of a sweep's trials."""

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.disk.statuses import FAILED
from orchestrator.report import page
from orchestrator.report.headline import make_status_badge
from orchestrator.report.markup import concatenate, element
from orchestrator.report.tables import make_table

MAX_ROWS = 1000
"""Maximum number of rows of the table of trials."""
MAX_CELLS = 20_000
"""Maximum number of cells of the table, which has fewer rows if it has many columns."""
MAX_FAILED = 100
"""Maximum number of failed trials in the table, besides those among the best."""
_MAX_ERROR_LENGTH = 80
"""Number of characters of an error that are shown before it is unfolded."""
_COST_COLUMNS = (
    "step_s",
    "train_s",
    "samples_per_s",
    "process_peak_rss_bytes",
    "peak_allocated_bytes",
    "total_s",
    "data_wait_share",
)
"""Columns with costs, in the order in which the table shows them."""


def render_trials(ordered: pd.DataFrame, objectives: Mapping[str, str], path: str) -> page.Section:
    """Show the table of trials, best first; of too many, the best and some that failed."""
    if not len(ordered):
        return page.Section("trials", "Trials", "No trial has begun yet.")
    columns = arrange_columns(ordered, objectives)
    n_best = max(1, min(MAX_ROWS, MAX_CELLS // len(columns)))
    is_best = np.arange(len(ordered)) < n_best
    has_failed = ordered["status"].isin(FAILED)
    shown = ordered[is_best | (has_failed & (has_failed.cumsum() <= MAX_FAILED))]
    rows = []
    for trial, row in shown[columns].iterrows():
        name = element("span", str(trial), id=str(trial))
        rows.append((name, *(_format_value(column, row[column]) for column in columns)))

    search = element(
        "input", type="search", placeholder="filter rows", aria_label="Only rows with this text"
    )
    tools = element("div", search, "Click a heading to sort.", class_="tools")
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
            f"{len(shown):,} of {len(ordered):,} trials: the best, and some that failed. All of"
            f" them: hookyard show {shlex.quote(path)} --json"
        )
    return page.Section("trials", "Trials", concatenate([tools, drawn]), note)


def arrange_columns(trials: pd.DataFrame, objectives: Mapping[str, str]) -> list[str]:
    """Return the columns that are not empty, the important ones first: the reason of a failure is
    one of them."""
    known = [str(name) for name in trials.columns if trials[name].notna().any()]
    values = [name for name in known if name.startswith(CONFIG)]
    first = ["status", *values, *objectives, "diverged", "error", *_COST_COLUMNS]
    return [name for name in dict.fromkeys([*first, *known]) if name in known]


def _format_value(name: str, value: Any) -> Any:
    if name == "status":
        return make_status_badge(str(value))
    if name == "error" and isinstance(value, str) and len(value) > _MAX_ERROR_LENGTH:
        return page.make_details(f"{value[:_MAX_ERROR_LENGTH]}…", value)
    # A column with empty cells makes floats of counts.
    is_count = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return int(value) if is_count else value
