"""`hookyard report RUN|SWEEP [--output FILE]`"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.errors import UsageError

PAGE = "report.html"


def report(
    run: Annotated[str, typer.Argument(help="The folder of a run or a sweep.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="FILE", help="Where to write it: a file or a URL; report.html in the folder by default."
        ),
    ] = None,
) -> None:
    """Writes a run or a sweep as one HTML file that opens without a network, and prints where it is."""
    from orchestrator.report import report as page_of
    from orchestrator.runs.folder import RunFolder
    from orchestrator.storage import Storage

    folder = RunFolder.open(run)
    place, _, name = output.rpartition("/") if output else (str(folder), "", PAGE)
    if not name:
        raise UsageError(f"{output} is a folder: name a file, such as {output}{PAGE}")
    storage = Storage(place or ("/" if output and output.startswith("/") else "."))
    try:
        storage.write(name, page_of(folder))
    except OSError as error:
        raise UsageError(f"cannot write {output or f'{folder}/{PAGE}'}: {error}") from None
    typer.echo(f"{storage}/{name}")
