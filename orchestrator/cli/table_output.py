"""Tables for stdout or a file, in the format that the flags of a subcommand choose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

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
OutputFlag = Annotated[
    str | None,
    typer.Option("--output", metavar="FILE", help="File to write instead of stdout."),
]


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
        if format == "table" and file is not None:
            raise UsageError(
                f"--output {file} needs a data format: add --format csv, json or parquet"
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
            echo(table.to_csv(index=False), nl=False)

    def _write_file(self, file: str, table: pd.DataFrame) -> None:
        check_output(split_options(file)[0])
        content = self._format(table)
        try:
            if is_url(file):
                storage = Storage(file)
                storage.parent.write(storage.name, content)
            else:
                Path(file).write_bytes(content)
        except (OSError, StorageError) as error:
            raise UsageError(f"cannot write {without_credentials(file)}: {error}") from None

    def _format(self, table: pd.DataFrame) -> bytes:
        if self.format == "parquet":
            return table.to_parquet(index=False)
        if self.format == "csv":
            return table.to_csv(index=False).encode(errors="backslashreplace")
        return format_json(_list_records(table)).encode()


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
