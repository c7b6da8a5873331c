"""`hookyard compare`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import AsJson, complete_runs
from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.errors import UsageError
from orchestrator.terminal.printable import escape_data

if TYPE_CHECKING:
    from orchestrator.sweeps.results.comparison_text import ComparisonText


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Two or more runs, or two or more sweeps. The first is the reference.",
            autocompletion=complete_runs,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Compare the configs, environments, metrics and costs of runs or sweeps, and say which
    differences are noise.

    Example: hookyard compare runs/spirals runs/slower
    """
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.sweeps.results.comparison_text import describe_comparison
    from orchestrator.sweeps.results.folder_comparison import compare_folders

    if len(runs) < 2:
        raise UsageError(
            "compare needs two or more runs, or two or more sweeps: hookyard compare runs/a runs/b"
        )
    comparison = compare_folders([RunFolder.open(path) for path in runs])
    if as_json:
        print_json(comparison)
    else:
        _print(escape_data(describe_comparison(comparison)))


def _print(text: ComparisonText) -> None:
    echo(text.summary)
    for table in text.tables:
        echo()
        if table.rows:
            print_table((table.title, *text.names), table.rows)
        else:
            echo(f"{table.title}: {table.empty}")
    for note in text.notes:
        echo(f"\n{note}")
