"""`hookyard serve`: the live page."""

from typing import Annotated

import typer

from orchestrator.cli.output import echo
from orchestrator.errors import UsageError


def serve(
    storage: Annotated[
        str,
        typer.Argument(metavar="STORAGE", help="The folder or bucket that holds the runs."),
    ] = "runs",
    host: Annotated[
        str,
        typer.Option(metavar="HOST", help="Address to listen to; only this machine by default."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port; 0 for any free one.")
    ] = 8710,
) -> None:
    """Show the runs of a storage in a browser, live. It only reads.

    Prints the address, with a token that it needs, and serves until Ctrl-C.

    Example: hookyard serve runs
    """
    try:
        from orchestrator.serve.server import serve as serve_storage
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serve needs the package {error.name}: pip install 'hookyard[serve]'"
        ) from None
    try:
        serve_storage(storage, host, port, echo)
    except KeyboardInterrupt:
        echo("Stopped serving. Runs go on.", err=True)
