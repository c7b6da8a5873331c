"""The display of a notebook, which updates in place below the cell."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from html import escape
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from orchestrator.storage import Storage
from orchestrator.terminal.driver_log import DriverLog

if TYPE_CHECKING:
    from rich.console import RenderableType

_INTERVAL_S = 1.0
_WIDTH = 120
"""Columns of a frame."""
_HEIGHT = 30
"""Lines of a frame."""
_MAX_LINES = 500
"""Number of lines kept with the cell. `log.txt` has all lines."""
_LAST_LINES = 8
"""Number of lines shown during the run."""
_STYLE = "margin:0;line-height:1.25;font-family:monospace;white-space:pre;overflow-x:auto"


class NotebookDisplay:
    """Display of the frame and the last lines below the cell; it also writes the lines to
    `log.txt`.

    At the end, only the lines remain, collapsed.
    """

    def __init__(self, log: Storage | None, frame: Callable[[int], RenderableType]) -> None:
        self._log = DriverLog(log)
        self._frame = frame
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._end = Event()

    def __enter__(self) -> Self:
        from IPython.display import HTML, display

        self._html = HTML
        self._output = display(HTML(""), display_id=True)
        # The kernel finds the cell of an output in the context variables.
        self._thread = Thread(target=copy_context().run, args=(self._update,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
        details = ""
        if self._lines:
            lines = _make_preformatted("\n".join(self._lines))
            details = f"<details><summary>{escape(self._lines[-1])}</summary>{lines}</details>"
        self._output.update(self._html(details))
        self._log.flush()

    def line(self, text: str) -> None:
        """Show one line below the cell, and write it to the log."""
        self._lines.append(text)
        self._log.add(text)

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Do nothing: the frame shows the progress."""

    def _update(self) -> None:
        while not self._end.wait(_INTERVAL_S):
            with suppress(Exception):  # a display must never end training
                lines = _make_preformatted("\n".join(list(self._lines)[-_LAST_LINES:]))
                self._output.update(self._html(render_frame(self._frame(_HEIGHT)) + lines))


def render_frame(frame: RenderableType) -> str:
    """Render what rich would print on a terminal as HTML."""
    from io import StringIO

    from rich.console import Console

    console = Console(
        file=StringIO(),
        record=True,
        width=_WIDTH,
        force_terminal=True,
        force_jupyter=False,
        highlight=False,
    )
    console.print(frame)
    return console.export_html(
        inline_styles=True, code_format=f'<pre style="{_STYLE}">{{code}}</pre>'
    )


def _make_preformatted(text: str) -> str:
    return f'<pre style="{_STYLE}">{escape(text)}</pre>'
