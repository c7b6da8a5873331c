"""`hookyard report` and `hookyard compare`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.completion import run_folders
from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.errors import StorageError, UsageError
from orchestrator.terminal.printable import printable_data

if TYPE_CHECKING:
    from orchestrator.storage import Storage

PAGE = "report.html"


def report(
    run: RunOrSweep,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="File or URL to write; report.html in the run by default."),
    ] = None,
) -> None:
    """Write an HTML report of a run or sweep, one file that needs no network."""
    from orchestrator.records.run_folder import RunFolder
    from orchestrator.report import report as make_report
    from orchestrator.storage.location import join_location

    folder = RunFolder.open(run)
    _write_page(output or join_location(folder.location, PAGE), make_report(folder))


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...",
            help="Two or more runs, or two or more sweeps. The first is the reference.",
            autocompletion=run_folders,
        ),
    ],
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write an HTML page with curves.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the configs, metrics and costs of runs or sweeps, and say which differences are noise."""
    from orchestrator.records.run_folder import RunFolder

    if len(runs) < 2:
        raise UsageError("compare needs two or more runs, or two or more sweeps: hookyard compare runs/a runs/b")
    if as_json and html:
        raise UsageError("--json and --html exclude each other; set only one of them")
    folders = [RunFolder.open(path) for path in runs]
    sweeps = [bool(folder.metadata().sweep) for folder in folders]
    if any(sweeps) and not all(sweeps):
        kinds = ", ".join(
            f"{folder} is a {'sweep' if sweep else 'run'}" for folder, sweep in zip(folders, sweeps, strict=True)
        )
        raise UsageError(
            f"{kinds}; compare runs with runs (such as a sweep's trials/trial-0000) and sweeps with sweeps"
        )
    if html:
        from orchestrator.report import comparison

        return _write_page(html, comparison(folders))
    if all(sweeps):
        from orchestrator.sweeps.results.comparison import compare_sweeps
        from orchestrator.sweeps.results.result import Sweep

        differences = compare_sweeps([Sweep(folder) for folder in folders])
    else:
        from orchestrator.runs.result import Run, compare_runs

        differences = compare_runs([Run(folder) for folder in folders])
    return print_json(differences) if as_json else _print(printable_data(differences))


def _print(differences: dict[str, Any]) -> None:
    from hooks.metrics.direction import explain_unknown_direction
    from orchestrator.report.side_by_side import PARTS, format_entry, headings

    echo(", ".join(f"{name} ({kind})" for name, kind in headings(differences)))
    names = [name for name, _ in headings(differences)]
    for part, (title, empty, _) in PARTS.items():
        if part in differences:
            echo("")
            rows = [(name, *format_entry(name, entry)) for name, entry in differences[part].items()]
            print_table((title, *names), rows) if rows else echo(f"{title}: {empty}")
    if differences.get("not_known"):
        echo(f"\n{explain_unknown_direction(differences['not_known'])}")


def _write_page(output: str, page: str) -> None:
    storage, name = folder_and_name(output)
    try:
        storage.write(name, page)
    except (OSError, StorageError) as error:
        raise UsageError(f"cannot write {name} to {storage}: {error}") from None
    echo(storage / name)


def folder_and_name(output: str) -> tuple[Storage, str]:
    """Split an output path into folder and file name; the options of a URL go with the folder."""
    from orchestrator.storage import Storage
    from orchestrator.storage.location import split_options

    path, options = split_options(output)
    folder, slash, name = path.rpartition("/")
    if not name:
        raise UsageError(f"{output} is a folder: name a file, such as {path}{PAGE}{options}")
    return Storage(f"{folder or slash or '.'}{options}"), name
