"""`hookyard samples`: the samples behind some rows."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson, OneRun
from orchestrator.cli.output import echo, stdout_to_stderr
from orchestrator.cli.table_output import FormatFlag, OutputFlag, TableOutput


def samples(
    run: OneRun,
    where: Annotated[
        str,
        typer.Option(
            metavar="EXPR", help="Rows to show; only of train unless it names a phase: loss > 5"
        ),
    ],
    rank: Annotated[int | None, typer.Option(metavar="R", min=0, help="Only this rank.")] = None,
    form: FormatFlag = "table",
    file: OutputFlag = None,
    as_json: AsJson = False,
) -> None:
    """Print the dataset indices of the samples behind some rows.

    They are computed from the seed and the order of the data; runs do not store them.

    Example: hookyard samples runs/spirals --where "loss > 2"
    """
    from orchestrator.runs.result import open_run

    output = TableOutput.from_flags(form, file, as_json)
    with stdout_to_stderr():
        table = open_run(run).samples(where, rank)
    if "position" in table:
        phases = " and ".join(table["phase"][table["index"].isna()].unique())
        echo(
            f"{phases} is an iterable dataset without indices: `position` counts the samples "
            "its rank had read in training",
            err=True,
        )
    if output.format == "table":
        # As text, so that no commas group the digits.
        numbers = table.columns.intersection(["index", "position"])
        table = table.astype(dict.fromkeys(numbers, "string"))
    output.write_rows(table)
