"""`hookyard compare`"""

from itertools import chain
from typing import Annotated, Any

import typer

from orchestrator.cli.options import AsJson, complete_runs
from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.errors import UsageError
from orchestrator.terminal.printable import escape_data


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
    from orchestrator.sweeps.results.differences import find_differences

    if len(runs) < 2:
        raise UsageError(
            "compare needs two or more runs, or two or more sweeps: hookyard compare runs/a runs/b"
        )
    differences = find_differences([RunFolder.open(path) for path in runs])
    return print_json(differences) if as_json else _print(escape_data(differences))


def _print(differences: dict[str, Any]) -> None:
    from hooks.metrics.direction import explain_unknown_direction
    from orchestrator.sweeps.results.differences import TABLES, format_entry, make_headings

    names = make_headings(differences)
    echo(", ".join(f"{name} ({kind})" for name, kind in names))
    cells: list[str] = []
    for key, (title, empty) in TABLES.items():
        if key in differences:
            echo("")
            rows = [(name, *format_entry(name, entry)) for name, entry in differences[key].items()]
            cells += chain.from_iterable(rows)
            if rows:
                print_table((title, *(name for name, _ in names)), rows)
            else:
                echo(f"{title}: {empty}")
    if any(cell.endswith("?)") for cell in cells):
        echo("\n?: too few values to tell from noise")
    if differences.get("not_known"):
        echo(f"\n{explain_unknown_direction(differences['not_known'])}")
