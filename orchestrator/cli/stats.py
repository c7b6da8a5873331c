"""`hookyard stats`: what the ranks measured, summarized or row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import echo, format_cell, print_table
from orchestrator.cli.stored_run import open_run_or_sweep
from orchestrator.cli.table_output import FormatFlag, OutputFlag, TableOutput
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep

By = Literal["trial", "rank", "node", "hook", "phase", "span", "row"]


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
    form: FormatFlag = "table",
    file: OutputFlag = None,
    as_json: AsJson = False,
) -> None:
    """Summarize what the ranks measured, or print single rows.

    By default a run has one line per column across all ranks, and a sweep has one line per trial.

    Example: hookyard stats runs/spirals --by rank
    """
    output = TableOutput.from_flags(form, file, as_json)
    if query is not None:
        if by or columns or where:
            raise UsageError("--query is a complete query: leave out --by, --columns and --where")
        return output.write_rows(_query_rows(run, query))

    opened = open_run_or_sweep(run)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    if by == "row":
        table = opened.load_stats(columns=names, where=where)
    else:
        if by is None and opened.folder.read_metadata().sweep:
            by = "trial"
        table = opened.summary(by, names, where)

    if table.empty and output.format == "table" and by != "trial":
        return echo(_explain_no_rows(opened, by, where), err=True)
    if by == "row":
        return output.write_rows(table)
    if output.format == "table":
        return _print_summary(table, by)
    return output.write_data(table.reset_index())


def _query_rows(path: str, sql: str) -> pd.DataFrame:
    from orchestrator.runs.result import Run

    opened = open_run_or_sweep(path)
    if not isinstance(opened, Run):
        raise UsageError(
            f"{opened.folder} is a sweep; --query reads one run, such as"
            f" {opened.folder}/trials/trial-0000"
        )
    return opened.query(sql)


def _explain_no_rows(opened: Run | Sweep, by: By | None, where: str | None) -> str:
    """Say why there is nothing to print."""
    from orchestrator.runs.result import Run

    if not isinstance(opened, Run):
        return "no rows match"
    if by == "hook":
        return "no hook was called"
    phases = [str(phase) for phase in opened.rows().aggregate({}, ["phase"]).index]
    if phases and where and "phase" in where:
        return f"no rows match. Recorded phases: {', '.join(phases)}"
    if phases:
        return "no rows match"
    if opened.status == "failed":
        return "the run recorded no rows (it failed before its first iteration)"
    return "the run recorded no rows"


def _print_summary(summary: pd.DataFrame, by: By | None) -> None:
    """Print a line for each group; without `by`, for each column of the rows."""
    columns = [str(name) for name in summary.columns]
    lines = []
    for key, values in summary.iterrows():
        keys = [str(part) for part in key] if isinstance(key, tuple) else [str(key)]
        names = columns
        if by is None:
            # The key is a column of the rows, whose name gives the unit.
            names = [name if name == "worst_rank" else keys[0] for name in columns]
        cells = [format_cell(name, value) for name, value in zip(names, values, strict=True)]
        lines.append([*keys, *cells])
    print_table([*map(str, summary.index.names), *columns], lines)
