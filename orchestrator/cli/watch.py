"""`hookyard watch`: a run or a sweep, live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.errors import FAILED, INTERRUPTED, SOME_FAILED
from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import echo, print_json

if TYPE_CHECKING:
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.terminal.frames import LiveFrame
    from orchestrator.terminal.run_view import RunView
    from orchestrator.terminal.sweep_view import SweepView

_WIDTH = 160
"""Columns of a frame that goes to a pipe."""
_CODES = {"failed": FAILED, "lost": FAILED, "interrupted": INTERRUPTED}
"""Exit code by status."""


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
            view = _watch(frame, view, folder)
        except KeyboardInterrupt:
            echo(f"Stopped watching. {folder} is still running.", err=True)
            raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(_choose_exit_code(view))


def _choose_exit_code(view: RunView | SweepView) -> int:
    """Return the exit code of a run or a sweep; 0 while it is running."""
    from orchestrator.terminal.sweep_view import SweepView

    if view.status in _CODES:
        return _CODES[view.status]
    if isinstance(view, SweepView) and view.failed and view.status != "running":
        return SOME_FAILED
    return 0


def _watch(frame: LiveFrame, view: RunView | SweepView, folder: RunFolder) -> RunView | SweepView:
    """Draw a run or a sweep until it ends, and return its last view."""
    from rich.live import Live

    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.terminal.frames import PrintableConsole

    console = PrintableConsole()
    with Live(console=console, auto_refresh=False) as live:
        live.update(frame.draw(view, console.height), refresh=True)
        while view.status == "running":
            time.sleep(frame.every_s)
            try:
                view = frame.read_view()
            except OSError:
                # A file may be rewritten at this moment; if the run was removed, this raises.
                RunFolder.open(str(folder))
            live.update(frame.draw(view, console.height), refresh=True)
    return view
