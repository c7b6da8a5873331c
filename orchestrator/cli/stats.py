"""`hookyard stats RUN [--by ...] [--columns a,b] [--where EXPR] [--format ...] [--output FILE]`"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import cell, print_table
from orchestrator.errors import UsageError
from orchestrator.terminal.printable import printable, printable_json

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep

By = Literal["trial", "rank", "node", "hook", "phase", "span", "row"]
"""What the rows of the table stand for."""
Format = Literal["table", "csv", "json", "parquet"]
Form = Annotated[Format, typer.Option("--format", help="parquet needs --output.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Where to write instead of stdout.")]


def stats(
    run: RunOrSweep,
    by: Annotated[
        By | None, typer.Option("--by", help="One row for each of these; `row` is every row as it was recorded.")
    ] = None,
    columns: Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="EXPR", help="Only these rows: rank == 0 and epoch >= 3")
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query", metavar="SQL", help="What SQL answers: select rank, avg(step_s) from rows group by rank"
        ),
    ] = None,
    form: Form = "table",
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Prints what the ranks measured: per column over all ranks, or by rank, node, hook, phase or span, or row by row;
    of a sweep by trial, or for each trial by one of the others. Or what a query in SQL answers."""
    from orchestrator.records.run_folder import RunFolder

    form = "json" if as_json else form
    check_form(form, output)
    if query is not None and (by or columns or where):
        raise UsageError("--query says by itself what is asked: leave out --by, --columns and --where")
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    folder = RunFolder.open(run)
    opened: Run | Sweep
    if folder.metadata().sweep:
        from orchestrator.sweeps.results.result import Sweep

        if query is not None:
            raise UsageError(f"{folder} is a sweep; a query is put to one run, such as {folder}/trials/trial-0000")
        opened, by = Sweep(folder), by or "trial"
    else:
        from orchestrator.runs.result import Run

        opened = Run(folder)
        if query is not None:
            return show(opened.query(query), "row", form, output)
    table = opened.load_stats(columns=names, where=where) if by == "row" else opened.summary(by, names, where)
    return show(table, by, form, output)


def check_form(form: Format, output: Path | None) -> None:
    """Raises UsageError for a form that does not go where it is to go."""
    if form == "parquet" and output is None:
        raise UsageError("parquet is no text: say where to write it with --output FILE")
    if form == "table" and output is not None:
        raise UsageError(f"{output} gets data, not a drawn table: add --format csv, json or parquet")


def show(table: pd.DataFrame, by: By | None, form: Format, output: Path | None) -> None:
    """Prints a table, or writes it."""
    if form == "table":
        return _print(table, by)
    return _write(table if by == "row" else table.reset_index(), form, output)


def _write(table: pd.DataFrame, form: Format, output: Path | None) -> None:
    """The table as data; an empty cell and a number that is none are null in JSON and nothing in CSV."""
    target: Any = StringIO() if output is None else output
    try:
        if form == "parquet":
            table.to_parquet(target, index=False)
        elif form == "csv":
            table.to_csv(target, index=False)
        else:
            table.to_json(target, orient="records", indent=2, double_precision=15)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error}") from None
    if output is None:
        text = target.getvalue().rstrip("\n")
        typer.echo(printable_json(text) if form == "json" else printable(text))


def _print(table: pd.DataFrame, by: By | None) -> None:
    if by == "row":
        names = [str(name) for name in table.columns]
        rows = table.astype(object).where(table.notna(), None).itertuples(index=False, name=None)
        return print_table(names, [[cell(name, value) for name, value in zip(names, row, strict=True)] for row in rows])
    names = [str(name) for name in table.index.names]
    lines: list[list[Any]] = []
    for key, row in table.iterrows():
        keys = [str(part) for part in (key if isinstance(key, tuple) else (key,))]
        # Without --by the rows are the columns of the stats, and carry the unit.
        lines.append(
            [
                *keys,
                *(
                    cell(keys[0] if by is None and name != "worst_rank" else str(name), row[name])
                    for name in table.columns
                ),
            ]
        )
    return print_table([*names, *map(str, table.columns)], lines)
