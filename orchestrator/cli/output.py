"""Data for stdout: JSON, and tables."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import typer

from orchestrator import units
from orchestrator.errors import UsageError
from orchestrator.storage.location import is_url, without_credentials
from orchestrator.terminal.printable import (
    escape_controls,
    escape_data,
    escape_json,
    escape_line,
    escape_surrogates,
)


def check_output(file: str) -> None:
    """Raise UsageError if --output names a folder, or a file in a folder that does not exist."""
    path = Path(file)
    if file.endswith("/") or path.is_dir():
        raise UsageError(f"--output {without_credentials(file)} is a folder; give a file name")
    if not is_url(file) and not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {file}: the folder {path.parent} does not exist")


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what Ray and tasks print to stderr, so that stdout holds only data."""
    with redirect_stdout(sys.stderr):
        yield


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text that may quote a stored run."""
    typer.echo(escape_controls(str(text)), err=err, nl=nl)


def format_json(data: Any) -> str:
    """Format data, dataclasses and NumPy values as one JSON document; infinity and NaN become
    null."""
    from pydantic_core import PydanticSerializationError, to_json

    def to_plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    options: Any = {"indent": 2, "inf_nan_mode": "null", "fallback": to_plain}
    try:
        return to_json(data, **options).decode()
    except PydanticSerializationError:  # a file name that is not UTF-8
        return to_json(escape_data(data, escape_surrogates), **options).decode()


def print_json(data: Any) -> None:
    """Print data as one JSON document on stdout, with control characters escaped."""
    typer.echo(escape_json(format_json(data)))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: a line per row, with aligned columns."""
    texts = [_escape_cells(row) for row in (columns, *rows)]
    widths = [max(map(len, cells)) for cells in zip(*texts, strict=True)]
    for row in texts:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        typer.echo("  ".join(cells).rstrip())


def _escape_cells(row: Sequence[object]) -> list[str]:
    return [escape_line(str(cell)) for cell in row]


def format_cell(name: str, value: Any) -> str:
    """Format a value in the unit that its column's name implies."""
    return units.format_value(name, value) or "-"
