"""Data for stdout: JSON, and tables that are plain lines where stdout is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import typer

from orchestrator.stats.aggregate import quantities
from orchestrator.terminal.printable import printable, printable_json, printable_line


@contextmanager
def talk() -> Iterator[None]:
    """Within it whatever is printed goes to stderr. Ray tells of dead workers on stdout, and tasks may print there."""
    with redirect_stdout(sys.stderr):
        yield


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints text that may quote a stored run."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def print_json(data: Any) -> None:
    """One JSON document. JSON knows no number that is none: it is null."""
    from pydantic_core import to_json

    typer.echo(printable_json(to_json(data, indent=2, inf_nan_mode="null", fallback=str).decode()))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: drawn and wrapped on a terminal, else one line for each row with aligned columns."""
    columns, *texts = [[printable_line(str(cell)) for cell in row] for row in (columns, *rows)]
    if sys.stdout.isatty():
        _draw(columns, texts)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *texts, strict=True)]
    for row in (columns, *texts):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


_HEADER, _CELL = 12, 24
"""Characters of a column's name and of its cells that are not folded."""
_BETWEEN = 2
"""Characters between two columns."""


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Draws as many columns as fit beside each other; the others follow below, beside the first one again."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    longest = [max((len(row[place]) for row in rows), default=0) for place in range(len(columns))]
    widths = [max(min(len(name), _HEADER), min(cell, _CELL)) for name, cell in zip(columns, longest, strict=True)]
    for places in _side_by_side(widths, console.width):
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for place in places:
            table.add_column(columns[place], overflow="fold", min_width=widths[place])
        for row in rows:
            table.add_row(*(Text(row[place]) for place in places))
        console.print(table)


def _side_by_side(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """The places of columns that fit in a line together, the first in each."""
    together = [0]
    for place in range(1, len(widths)):
        if len(together) > 1 and sum(widths[other] + _BETWEEN for other in (*together, place)) > room:
            yield together
            together = [0]
        together.append(place)
    yield together


def cell(name: str, value: Any) -> str:
    """A value as people read it; the column's name tells its unit."""
    return quantities.text(name, value) or "-"
