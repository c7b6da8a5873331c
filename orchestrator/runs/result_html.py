"""Runs and sweeps as HTML, for the output of a notebook's cell."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from orchestrator.units import COSTS

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.runs.result import Run

_LAST_REPORTS = 8
"""Number of reports in the table of a run."""


def render_run(run: Run) -> str:
    """Render the status, the best report and the last metrics of a run as HTML."""
    metrics = run.metrics
    columns = [
        name
        for name in map(str, metrics)
        if name in ("epoch", "step") or ("/" in name and not name.endswith(COSTS))
    ]
    best = f"best {run.best}" if run.best else None
    table = metrics[columns].tail(_LAST_REPORTS)
    return render_result(str(run.folder), run.status, [best, run.error], table)


def render_result(
    path: str, status: str, sentences: Iterable[str | None], table: pd.DataFrame | None
) -> str:
    """Render a run or a sweep as HTML: path, status, sentences and a table."""
    paragraphs = "".join(f"<div>{escape(sentence)}</div>" for sentence in sentences if sentence)
    rows = (
        ""
        if table is None or table.empty
        else table.to_html(escape=True, na_rep="", float_format="{:.4g}".format)
    )
    return f"<div><b>{escape(path)}</b>&ensp;{escape(status)}</div>{paragraphs}{rows}"
