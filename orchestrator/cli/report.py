"""`hookyard report`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import RunOrSweep
from orchestrator.cli.output import echo
from orchestrator.errors import StorageError, UsageError

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
