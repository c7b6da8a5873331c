"""Runs and sweeps as HTML, for the output of a notebook's cell."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


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
