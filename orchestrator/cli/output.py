"""Data for stdout: JSON, and tables that are plain lines where stdout is no terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import typer


@contextmanager
def talk() -> Iterator[None]:
    """Within it whatever is printed goes to stderr. Ray tells of dead workers on stdout, and tasks may print there."""
    with redirect_stdout(sys.stderr):
        yield


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


def cell(name: str, value: Any) -> str:
    """A value as people read it; the column's name tells its unit."""
    if value is None or value != value:
        return "-"
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if name.startswith("stats/"):
        # The unit of stats/step_s/p95 stands before the statistic.
        name = name.rpartition("/")[0]
    if name.endswith("_bytes"):
        return f"{value / 2**20:.1f} MiB"
    if name.endswith("_s") and not name.endswith("per_s"):
        return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    if name == "share":
        return f"{value:.2%}"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"
