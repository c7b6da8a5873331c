"""`hookyard report RUN|SWEEP [--output FILE]`"""

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
        typer.Option(
            "--output", metavar="FILE", help="Where to write it: a file or a URL; report.html in the folder by default."
        ),
    ] = None,
) -> None:
    """Writes a run or a sweep as one HTML file that opens without a network, and prints where it is."""
    from orchestrator.records.run_folder import RunFolder
    from orchestrator.report import report as page_of
    from orchestrator.storage.location import joined

    folder = RunFolder.open(run)
    write_page(output or joined(folder.location, PAGE), page_of(folder))


def write_page(output: str, page: str) -> None:
    """Writes a page to a file or a URL and prints where it is; raises UsageError where that cannot be written."""
    storage, name = folder_and_name(output)
    try:
        storage.write(name, page)
    except (OSError, StorageError) as error:
        raise UsageError(f"cannot write {name} to {storage}: {error}") from None
    echo(storage / name)


def folder_and_name(output: str) -> tuple[Storage, str]:
    """The folder that a file is to lie in, and the file's name; a URL's options are the folder's."""
    from orchestrator.storage import Storage
    from orchestrator.storage.location import split_options

    path, options = split_options(output)
    folder, slash, name = path.rpartition("/")
    if not name:
        raise UsageError(f"{output} is a folder: name a file, such as {path}{PAGE}{options}")
    return Storage(f"{folder or slash or '.'}{options}"), name
