"""`hookyard samples RUN --where EXPR [--rank R] [--format ...] [--output FILE]`"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson, OneRun
from orchestrator.cli.output import echo, talk
from orchestrator.cli.stats import Form, Output, check_form, show


def samples(
    run: OneRun,
    where: Annotated[
        str,
        typer.Option("--where", metavar="EXPR", help="Of which rows: loss > 5; of train, unless the phase is named."),
    ],
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Of this rank alone.")] = None,
    form: Form = "table",
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Prints which samples of the dataset the batches of some rows had, with the rows' loss: from the order of the
    data, which is known from the seed, so that nothing of it was stored."""
    from orchestrator.runs.result import open_run

    form = "json" if as_json else form
    check_form(form, output)
    with talk():
        found = open_run(run).samples(where, rank)
    if "position" in found:
        streams = found["phase"][found["index"].isna()].unique()
        echo(
            f"{' and '.join(streams)} is a stream, without indices: a position counts what its rank has read of it in"
            " training",
            err=True,
        )
    # As text, so that numbers are not grouped by thousands.
    numbers = dict.fromkeys(found.columns.intersection(["index", "position"]), "string")
    show(found.astype(numbers) if form == "table" else found, "row", form, output)
