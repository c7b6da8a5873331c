"""`hookyard stats RUN [--by rank|hook|phase]`"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AsJson
from orchestrator.cli.output import cell, print_json, print_table

if TYPE_CHECKING:
    import pandas as pd


class By(StrEnum):
    """What the rows of the table stand for."""

    RANK = "rank"
    HOOK = "hook"
    PHASE = "phase"


def stats(
    run: Annotated[str, typer.Argument(help="The folder of a run.")],
    by: Annotated[By | None, typer.Option("--by", help="One row for each rank, hook or phase.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prints what the ranks measured: per column over all ranks, or by rank, hook or phase."""
    from orchestrator.runs.result import open_run

    table = open_run(run).summary(by)
    if as_json:
        return print_json(table.reset_index().to_dict("records"))
    return _print(table, by)


def _print(table: pd.DataFrame, by: By | None) -> None:
    names = [str(name) for name in table.index.names]
    rows: list[list[Any]] = []
    for key, row in table.iterrows():
        keys = [str(part) for part in (key if isinstance(key, tuple) else (key,))]
        # Without --by the rows are the columns of the stats, and carry the unit.
        rows.append([*keys, *(cell(keys[0] if by is None and name != "worst_rank" else str(name), row[name]) for name in table.columns)])
    print_table([*names, *map(str, table.columns)], rows)
