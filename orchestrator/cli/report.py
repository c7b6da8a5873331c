"""`hookyard report`: a run or a sweep as one HTML file."""

from typing import Annotated

import typer

from orchestrator.cli.options import RunOrSweep
from orchestrator.cli.output import check_output, echo
from orchestrator.errors import StorageError, UsageError

PAGE = "report.html"


def report(
    run: RunOrSweep,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File or URL to write; report.html in the run by default."
        ),
    ] = None,
) -> None:
    """Write an HTML report of a run or sweep, one file that needs no network.

    Example: hookyard report runs/spirals --output spirals.html
    """
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.report import make_report
    from orchestrator.storage import Storage
    from orchestrator.storage.location import split_options

    folder = RunFolder.open(run)
    if output:
        check_output(split_options(output)[0])
    file = Storage(output) if output else folder.storage / PAGE
    page = make_report(folder)
    try:
        file.parent.write(file.name, page)
    except (OSError, StorageError) as error:
        raise UsageError(f"cannot write {file}: {error}") from None
    echo(file)
