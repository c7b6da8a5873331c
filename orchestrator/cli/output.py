"""Data for stdout: JSON, and tables that are plain lines where stdout is no terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import typer


def print_json(data: Any) -> None:
    """One JSON document."""
    typer.echo(json.dumps(data, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: drawn and wrapped on a terminal, else one line for each row with aligned columns."""
    texts = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, texts)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *texts, strict=True)]
    for row in (columns, *texts):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
