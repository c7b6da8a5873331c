"""Runs and sweeps as HTML, for the output of a notebook's cell."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from hooks.metrics.names import REPORT_ENTRIES
from orchestrator.column_names import COSTS

if TYPE_CHECKING:
    import pandas as pd

_LAST_REPORTS = 8
"""Number of reports in the table of a run."""


def render_run(
    path: str, status: str, sentences: Iterable[str | None], reports: pd.DataFrame
) -> str:
    """Render a run as HTML: path, status, sentences and the metrics of its last reports."""
    columns = [
        name
        for name in map(str, reports)
        if name in ("epoch", "step") or (name not in REPORT_ENTRIES and not name.endswith(COSTS))
    ]
    return render_result(path, status, sentences, reports[columns].tail(_LAST_REPORTS))


def render_result(
    path: str, status: str, sentences: Iterable[str | None], table: pd.DataFrame | None
) -> str:
    """Render a run or a sweep as HTML: path, status, sentences and a table."""
    paragraphs = "".join(f"<div>{escape(sentence)}</div>" for sentence in sentences if sentence)
    rows = ""
    if table is not None and not table.empty:
        rows = table.to_html(escape=True, na_rep="", float_format="{:.4g}".format)
    return f"<div><b>{escape(path)}</b>&ensp;{escape(status)}</div>{paragraphs}{rows}"
