"""`hookyard query`: SQL on all runs of a storage."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson, StorageFlag
from orchestrator.cli.table_output import FormatFlag, OutputFlag, TableOutput


def query(
    sql: Annotated[
        str,
        typer.Argument(metavar="SQL", help="A select on the table `runs`, in DuckDB's dialect."),
    ],
    storage: StorageFlag = "runs",
    form: FormatFlag = "table",
    file: OutputFlag = None,
    as_json: AsJson = False,
) -> None:
    """Run SQL on all runs, sweeps, trials and evaluations of a storage: the table `runs`.

    Put the names of metrics and of the configuration in double quotes: "val/loss",
    "config/optimizer.lr".

    Example: hookyard query "select name, status, best from runs where tag = 'paper' order by best"
    """
    from orchestrator.runs.listing import query_runs

    output = TableOutput.from_flags(form, file, as_json)
    output.write_rows(query_runs(storage, sql))
