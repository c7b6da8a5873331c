"""`hookyard watch RUN`, `hookyard watch SWEEP`"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.errors import FAILED, INTERRUPTED, SOME_FAILED
from orchestrator.cli.options import AsJson, RunOrSweep
from orchestrator.cli.output import echo, print_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from orchestrator.records.run_folder import RunFolder

_WIDTH = 160
"""Columns of a frame that no terminal shows."""
_CODES = {"failed": FAILED, "lost": FAILED, "interrupted": INTERRUPTED}


def watch(
    run: RunOrSweep,
    once: Annotated[bool, typer.Option("--once", help="Print how it stands, and leave.")] = False,
    as_json: AsJson = False,
) -> None:
    """Shows how a run or a sweep fares until it ends, from its files alone; exits as that did."""
    from orchestrator.records.run_folder import RunFolder
    from orchestrator.terminal.console import PrintableConsole
    from orchestrator.terminal.live_frame import looked_at

    folder = RunFolder.open(run)
    look, frame = looked_at(folder)
    view = look()
    if as_json:
        print_json(asdict(view))
    elif once or not sys.stdout.isatty():
        PrintableConsole(width=None if sys.stdout.isatty() else _WIDTH).print(frame(view, None))
    else:
        try:
            view = _watch(PrintableConsole(), folder, look, frame, view)
        except KeyboardInterrupt:
            echo(f"{folder} goes on without being watched", err=True)
            raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(_code(view))


def _watch(
    console: Console,
    folder: RunFolder,
    look: Callable[[], Any],
    frame: Callable[[Any, int | None], RenderableType],
    view: Any,
) -> Any:
    """Draws anew until it is over; Ctrl-C leaves."""
    from rich.live import Live

    from orchestrator.terminal.run_status import look_every_s

    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(frame(view, console.height), refresh=True)
            if view.status != "running":
                return view
            try:
                time.sleep(look_every_s(folder.storage))
                view = look()
            except OSError:
                # What is written anew or joined at this moment is there at the next look; what was removed is not.
                type(folder).open(str(folder))


def _code(view: Any) -> int:
    if view.status in _CODES:
        return _CODES[view.status]
    return SOME_FAILED if getattr(view, "failed", 0) and view.status != "running" else 0
