"""Data for stdout: JSON, and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import typer

from orchestrator.stats.aggregate import quantities
from orchestrator.terminal.printable import printable, printable_json, printable_line

_HEADER, _CELL = 12, 24
"""Characters of a column's name and of its cells that are never folded."""
_GAP = 2
"""Characters between two columns."""


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what Ray and tasks print to stderr, so that stdout holds only data."""
    with redirect_stdout(sys.stderr):
        yield


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text that may quote a stored run."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def print_json(data: Any) -> None:
    """Print one JSON document; infinity and NaN become null."""
    from pydantic_core import to_json

    typer.echo(printable_json(to_json(data, indent=2, inf_nan_mode="null", fallback=str).decode()))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: drawn and wrapped on a terminal, otherwise one line per row with aligned columns."""
    columns, *texts = [[printable_line(str(cell)) for cell in row] for row in (columns, *rows)]
    if sys.stdout.isatty():
        _draw(columns, texts)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *texts, strict=True)]
    for row in (columns, *texts):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Draw as many columns side by side as fit; the rest follow below, after the first column again."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    longest = [max((len(row[place]) for row in rows), default=0) for place in range(len(columns))]
    widths = [max(min(len(name), _HEADER), min(cell, _CELL)) for name, cell in zip(columns, longest, strict=True)]
    parts = [[0]]
    for place in range(1, len(widths)):
        if len(parts[-1]) > 1 and sum(widths[other] + _GAP for other in (*parts[-1], place)) > console.width:
            parts.append([0])
        parts[-1].append(place)
    for number, part in enumerate(parts):
        if number:
            console.print()
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for place in part:
            table.add_column(columns[place], overflow="fold", min_width=widths[place])
        for row in rows:
            table.add_row(*(Text(row[place]) for place in part))
        console.print(table)


def cell(name: str, value: Any) -> str:
    """Format a value in the unit that its column's name implies."""
    return quantities.text(name, value) or "-"
