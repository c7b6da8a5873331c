"""Tables for stdout or a file, in the format that the flags of a subcommand choose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, Self

import typer

from orchestrator.cli.output import (
    check_output,
    echo,
    format_cell,
    format_json,
    print_json,
    print_table,
)
from orchestrator.errors import StorageError, UsageError
from orchestrator.storage import Storage, without_credentials
from orchestrator.storage.location import is_url, split_options

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["table", "csv", "json", "parquet"]
FormatFlag = Annotated[Format, typer.Option("--format", help="parquet needs --output.")]
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".zip": "zip"}
"""pandas' compression by the ending of a file's name."""
OutputFlag = Annotated[
    str | None,
    typer.Option("--output", metavar="FILE", help="File or URL to write instead of stdout."),
]
_ROWS_AT_A_TIME = 10_000
"""Number of rows that are printed as CSV at a time."""


@dataclass(frozen=True)
class TableOutput:
    """Where a table goes, and in which format."""

    format: Format
    file: str | None
    """A path or a URL; None for stdout."""

    @classmethod
    def from_flags(cls, format: Format, file: str | None, as_json: bool) -> Self:
        """Choose the output.

        Raises:
            UsageError: If the flags contradict each other.
        """
        if as_json and format not in ("table", "json"):
            raise UsageError(
                f"--json and --format {format} contradict each other; leave out one of them"
            )
        if as_json:
            format = "json"
        if format == "parquet" and file is None:
            raise UsageError("--format parquet needs --output FILE")
        if format == "json" and file is not None and _find_compression(file):
            raise UsageError(
                f"--output {without_credentials(file)} would not be compressed: "
                "leave out the ending of its name, or use --format csv"
            )
        if format == "table" and file is not None:
            raise UsageError(
                f"--output {without_credentials(file)} needs a data format: "
                "add --format csv, json or parquet"
            )
        return cls(format, file)

    def write_rows(self, rows: pd.DataFrame) -> None:
        """Print rows as a table, or write them as data. Their index has no meaning."""
        if self.format == "table":
            _print_rows(rows)
        else:
            self.write_data(rows)

    def write_data(self, table: pd.DataFrame) -> None:
        """Print or write a table as CSV, JSON or Parquet, without its index.

        Empty cells and NaN are null in JSON and empty in CSV.

        Raises:
            UsageError: If the file cannot be written.
        """
        if self.file is not None:
            self._write_file(self.file, table)
        elif self.format == "json":
            print_json(_list_records(table))
        else:
            _print_csv(table)

    def _write_file(self, file: str, table: pd.DataFrame) -> None:
        check_output(split_options(file)[0])
        try:
            with _create(file) as stream:
                if self.format == "parquet":
                    table.to_parquet(stream, index=False)
                elif self.format == "csv":
                    _write_csv(table, stream, _find_compression(file))
                else:
                    stream.write(format_json(_list_records(table)).encode())
        # Some compressions need a package.
        except (OSError, StorageError, ImportError) as error:
            raise UsageError(f"cannot write {without_credentials(file)}: {error}") from None


def _create(file: str) -> AbstractContextManager[IO[bytes]]:
    """Open a path or a URL for writing. An earlier file stays until the new one is complete; a
    device is written to."""
    if is_url(file):
        storage = Storage(file)
        return storage.parent.create(storage.name)
    path = Path(file)
    # The pipe behind /dev/stdout has no path of its own.
    if path.exists() and not path.is_file():
        return path.open("wb")
    return _replace(path.resolve())


@contextmanager
def _replace(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces the one at a path, if there is one, and keeps its permissions."""
    with Storage(path.parent).create(path.name) as stream:
        if path.exists():
            os.chmod(stream.fileno(), S_IMODE(path.stat().st_mode))
        yield stream


def _find_compression(file: str) -> str | None:
    return _COMPRESSIONS.get(Path(split_options(file)[0]).suffix.lower())


def _write_csv(table: pd.DataFrame, stream: IO[bytes], compression: Any) -> None:
    table.to_csv(stream, index=False, mode="wb", compression=compression, errors="backslashreplace")


def _print_csv(table: pd.DataFrame) -> None:
    """Print a table as CSV, some rows at a time, because the text of a large table may need more
    memory than the table."""
    # An empty table has a header, too.
    for start in range(0, max(1, len(table)), _ROWS_AT_A_TIME):
        block = table.iloc[start : start + _ROWS_AT_A_TIME]
        echo(block.to_csv(index=False, header=start == 0), nl=False)


def _print_rows(rows: pd.DataFrame) -> None:
    if rows.empty:
        return echo("no rows match", err=True)

    columns = [str(name) for name in rows.columns]
    cells = []
    for values in _clear_empty_cells(rows).itertuples(index=False, name=None):
        cells.append(
            [format_cell(name, value) for name, value in zip(columns, values, strict=True)]
        )
    return print_table(columns, cells)


def _list_records(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return a dict for each row. pandas' own `to_json` would round numbers to 15 decimals."""
    return _clear_empty_cells(table).to_dict("records")


def _clear_empty_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with None in empty cells and for NaN."""
    return table.astype(object).where(table.notna(), None)
