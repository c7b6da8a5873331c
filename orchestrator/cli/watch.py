"""`hookyard watch`: a run or a sweep, live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.errors import FAILED, INTERRUPTED, SOME_FAILED
from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import echo, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.terminal.frames import LiveFrame

_WIDTH = 160
"""Columns of a frame that goes to a pipe."""
_CODES = {"failed": FAILED, "lost": FAILED, "interrupted": INTERRUPTED}


def watch(
    run: RunOrSweep,
    once: Annotated[
        bool, typer.Option("--once", help="Print the present state, and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run or sweep until it ends, from its files alone.

    Exits with the exit code of the run.

    Example: hookyard watch runs/spirals
    """
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.terminal.frames import LiveFrame, PrintableConsole

    folder = RunFolder.open(run)
    frame = LiveFrame(folder)
    view = frame.read_view()
    if as_json:
        print_json(view)
    elif once or not sys.stdout.isatty():
        width = None if sys.stdout.isatty() else _WIDTH
        PrintableConsole(width=width).print(frame.draw(view, None))
    else:
        try:
            view = _watch(PrintableConsole(), folder, frame, view)
        except KeyboardInterrupt:
            echo(f"Stopped watching. {folder} is still running.", err=True)
            raise typer.Exit(INTERRUPTED) from None
    some_failed = getattr(view, "failed", 0) and view.status != "running"
    raise typer.Exit(_CODES.get(view.status, SOME_FAILED if some_failed else 0))


def _watch(console: Console, folder: RunFolder, frame: LiveFrame, view: Any) -> Any:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(frame.draw(view, console.height), refresh=True)
            if view.status != "running":
                return view
            try:
                time.sleep(frame.every_s)
                view = frame.read_view()
            except OSError:
                # A file may be rewritten at this moment; if the run was removed, this raises.
                type(folder).open(str(folder))
