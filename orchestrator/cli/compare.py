"""`hookyard compare A B ...`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.completion import run_folders
from orchestrator.cli.options import AsJson
from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.cli.report import write_page
from orchestrator.errors import UsageError
from orchestrator.terminal.printable import printable_data

if TYPE_CHECKING:
    from orchestrator.records.run_folder import RunFolder


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="The folders of two runs or more, or of two sweeps or more; each is compared with the first.",
            autocompletion=run_folders,
        ),
    ],
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write one HTML file, with the curves, instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compares runs or sweeps: where their configs differ, what they reached and cost, and which differences are only
    noise."""
    from orchestrator.records.run_folder import RunFolder

    if len(runs) < 2:
        raise UsageError("compare takes two runs or more, or two sweeps or more: hookyard compare runs/a runs/b")
    if as_json and html:
        raise UsageError("--json prints data and --html writes a page: say one of them")
    folders = [RunFolder.open(path) for path in runs]
    sweeps = [bool(folder.metadata().sweep) for folder in folders]
    if any(sweeps) and not all(sweeps):
        kinds = ", ".join(
            f"{folder} is a {'sweep' if sweep else 'run'}" for folder, sweep in zip(folders, sweeps, strict=True)
        )
        raise UsageError(
            f"{kinds}; a run is compared with runs, such as a sweep's trials/trial-0000, and a sweep with sweeps"
        )
    if html:
        from orchestrator.report import comparison

        return write_page(html, comparison(folders))
    found = _found(folders, of_sweeps=all(sweeps))
    return print_json(found) if as_json else _print(printable_data(found))


def _found(folders: Sequence[RunFolder], of_sweeps: bool) -> dict[str, Any]:
    if of_sweeps:
        from orchestrator.sweeps.results.comparison import compare_sweeps
        from orchestrator.sweeps.results.result import Sweep

        return compare_sweeps([Sweep(folder) for folder in folders])
    from orchestrator.runs.comparison import compare_runs
    from orchestrator.runs.result import Run

    return compare_runs([Run(folder) for folder in folders])


def _print(found: dict[str, Any]) -> None:
    from hooks.metrics.direction import not_known
    from orchestrator.report.side_by_side import PARTS, described, headings

    echo(", ".join(f"{name} ({what})" for name, what in headings(found)))
    names = [name for name, _ in headings(found)]
    for part, (title, nothing, _) in PARTS.items():
        if part in found:
            echo("")
            rows = [(name, *described(name, entry)) for name, entry in found[part].items()]
            print_table((title, *names), rows) if rows else echo(f"{title}: {nothing}")
    if found.get("not_known"):
        echo(f"\n{not_known(found['not_known'])}")
