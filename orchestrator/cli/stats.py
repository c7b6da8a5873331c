"""`hookyard stats`, `hookyard samples` and `hookyard query`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli.options import AsJson, OneRun, RunOrSweep, StorageFlag
from orchestrator.cli.output import (
    check_output,
    echo,
    format_cell,
    format_json,
    print_json,
    print_table,
    stdout_to_stderr,
)
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep

By = Literal["trial", "rank", "node", "hook", "phase", "span", "row"]
Format = Literal["table", "csv", "json", "parquet"]
Form = Annotated[Format, typer.Option("--format", help="parquet needs --output.")]
Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File to write instead of stdout.")
]


def stats(
    run: RunOrSweep,
    by: Annotated[
        By | None,
        typer.Option(help="One line per rank, node ...; `row` prints every recorded row."),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="EXPR", help="Only these rows: rank = 0 and epoch >= 3")
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="Run SQL: select rank, avg(step_s) from rows group by rank"
        ),
    ] = None,
    form: Form = "table",
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Summarize what the ranks measured, or print single rows.

    By default a run has one line per column across all ranks, and a sweep has one line per trial.

    Example: hookyard stats runs/spirals --by rank
    """
    from orchestrator.runs.result import Run

    form = _choose_format(form, output, as_json)
    if query is not None and (by or columns or where):
        raise UsageError("--query is a complete query: leave out --by, --columns and --where")
    opened = _open(run)
    if query is not None:
        if not isinstance(opened, Run):
            raise UsageError(
                f"{opened.folder} is a sweep; --query reads one run, such as"
                f" {opened.folder}/trials/trial-0000"
            )
        return _print(opened.query(query), "row", form, output)

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    if by == "row":
        table = opened.load_stats(columns=names, where=where)
    else:
        by = by or (None if isinstance(opened, Run) else "trial")
        table = opened.summary(by, names, where)
    if table.empty and form == "table" and isinstance(opened, Run):
        return echo(_explain_no_rows(opened, by, where), err=True)
    return _print(table, by, form, output)


def _open(path: str) -> Run | Sweep:
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.runs.result import Run

    folder = RunFolder.open(path)
    if not folder.read_metadata().sweep:
        return Run(folder)
    from orchestrator.sweeps.results.result import Sweep

    return Sweep(folder)


def _explain_no_rows(run: Run, by: By | None, where: str | None) -> str:
    """Say why there is nothing to summarize."""
    if by == "hook":
        return "no hook was called"
    phases = [str(phase) for phase in run.rows().aggregate({}, ["phase"]).index]
    if phases:
        hint = f". Recorded phases: {', '.join(phases)}"
        return f"no rows match{hint if where and 'phase' in where else ''}"
    reason = " (it failed before its first iteration)" if run.status == "failed" else ""
    return f"the run recorded no rows{reason}"


def samples(
    run: OneRun,
    where: Annotated[
        str,
        typer.Option(
            metavar="EXPR", help="Rows to show; only of train unless it names a phase: loss > 5"
        ),
    ],
    rank: Annotated[int | None, typer.Option(metavar="R", min=0, help="Only this rank.")] = None,
    form: Form = "table",
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Print the dataset indices of the samples behind some rows.

    They are computed from the seed and the order of the data; runs do not store them.

    Example: hookyard samples runs/spirals --where "loss > 2"
    """
    from orchestrator.runs.result import open_run

    form = _choose_format(form, output, as_json)
    with stdout_to_stderr():
        table = open_run(run).samples(where, rank)
    if "position" in table:
        streams = " and ".join(table["phase"][table["index"].isna()].unique())
        echo(
            f"{streams} is an iterable dataset without indices: `position` counts the samples "
            "its rank had read in training",
            err=True,
        )
    if form == "table":  # as text, so that no commas group the digits
        table = table.astype(
            dict.fromkeys(table.columns.intersection(["index", "position"]), "string")
        )
    _print(table, "row", form, output)


def query(
    sql: Annotated[
        str,
        typer.Argument(metavar="SQL", help="A select on the table `runs`, in DuckDB's dialect."),
    ],
    storage: StorageFlag = "runs",
    form: Form = "table",
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Run SQL on all runs, sweeps, trials and evaluations of a storage: the table `runs`.

    Put the names of metrics and of the configuration in double quotes: "val/loss",
    "config/optimizer.lr".

    Example: hookyard query "select name, status, best from runs where tag = 'paper' order by best"
    """
    from orchestrator.runs.listing import query_runs

    form = _choose_format(form, output, as_json)
    _print(query_runs(storage, sql), "row", form, output)


def _choose_format(form: Format, output: Path | None, as_json: bool) -> Format:
    """Return the format to print or write; raises UsageError if the flags contradict each other."""
    if as_json and form not in ("table", "json"):
        raise UsageError(f"--json and --format {form} contradict each other; leave out one of them")
    form = "json" if as_json else form
    if form == "parquet" and output is None:
        raise UsageError("--format parquet needs --output FILE")
    if form == "table" and output is not None:
        raise UsageError(
            f"--output {output} needs a data format: add --format csv, json or parquet"
        )
    return form


def _print(table: pd.DataFrame, by: By | None, form: Format, output: Path | None) -> None:
    """Print the table, or write it as data; empty cells and NaN are null in JSON and empty in
    CSV."""
    if form == "table":
        return _print_table(table, by)
    table = table if by == "row" else table.reset_index()
    if output is None and form == "json":
        return print_json(_with_none(table).to_dict("records"))
    if output is None:
        return echo(table.to_csv(index=False), nl=False)
    check_output(output)
    try:
        if form == "parquet":
            table.to_parquet(output, index=False)
        elif form == "csv":
            table.to_csv(output, index=False)
        else:
            output.write_text(format_json(_with_none(table).to_dict("records")))
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error}") from None
    return None


def _with_none(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with None in empty cells. pandas' own `to_json` would round numbers to 15
    decimals."""
    return table.astype(object).where(table.notna(), None)


def _print_table(table: pd.DataFrame, by: By | None) -> None:
    if by != "trial" and table.empty:
        return echo("no rows match", err=True)
    columns = [str(name) for name in table.columns]
    if by == "row":
        rows = _with_none(table).itertuples(index=False, name=None)
        return print_table(columns, [list(map(format_cell, columns, row)) for row in rows])
    lines: list[list[str]] = []
    for key, row in table.iterrows():
        keys = [str(part) for part in (key if isinstance(key, tuple) else (key,))]
        # Without --by, a line is a column of the stats, whose name gives the unit.
        names = [keys[0] if by is None and name != "worst_rank" else name for name in columns]
        lines.append(
            [*keys, *(format_cell(name, value) for name, value in zip(names, row, strict=True))]
        )
    return print_table([*map(str, table.index.names), *columns], lines)
