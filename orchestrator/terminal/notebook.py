"""The display in a notebook: one output below the cell, written anew in place; and results as a notebook shows them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from html import escape
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self

from orchestrator.storage import Storage
from orchestrator.terminal.driver_log import DriverLog

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

_EVERY_S = 1.0
_WIDTH, _HEIGHT = 120, 30
"""Columns and lines of a frame."""
_MOST_LINES, _LAST_LINES = 500, 8
"""Lines that stay with the cell, and those of them that are seen while it goes on. All are in `log.txt`."""
_PLAIN = "margin:0;line-height:1.25;font-family:monospace;white-space:pre;overflow-x:auto"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookDisplay:
    """Shows the frame of what goes on, progress and the last lines below the cell, and keeps the lines in `log.txt`.
    Driver.

    At its end the lines are left, folded up: how it went is shown by the result.
    """

    def __init__(self, log: Storage | None, frame: Callable[[int], RenderableType]) -> None:
        self._log, self._frame = DriverLog(log), frame
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._bars: dict[str, tuple[int, int, str]] = {}
        self._over, self._writing = Event(), Lock()

    def __enter__(self) -> Self:
        from IPython.display import HTML, display

        self._html = HTML
        self._output = display(HTML(""), display_id=True)
        # A kernel knows by its context which cell an output belongs to.
        self._writer = Thread(target=copy_context().run, args=(self._keep_writing,), daemon=True)
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._writer.join()
        self._write(_folded(self._lines))
        self._log.close()

    def line(self, text: str) -> None:
        """One line below the cell and in the log."""
        self._lines.append(text)
        self._log.add(text)

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Moves a progress bar; one bar per label, gone when `completed` reaches `total`."""
        self._bars[label] = (completed, total, text)
        if completed >= total:
            del self._bars[label]

    def _keep_writing(self) -> None:
        while not self._over.wait(_EVERY_S):
            # Nothing that goes wrong with what is shown may end what is trained.
            with suppress(Exception):
                self._write(self._drawn())

    def _drawn(self) -> str:
        bars = "".join(_bar(label, *bar) for label, bar in list(self._bars.items()))
        return frame_html(self._frame(_HEIGHT)) + bars + _plain("\n".join(list(self._lines)[-_LAST_LINES:]))

    def _write(self, html: str) -> None:
        with self._writing:
            self._output.update(self._html(html))


def frame_html(frame: RenderableType) -> str:
    """What would be drawn on a terminal, as HTML."""
    from io import StringIO

    from rich.console import Console

    console = Console(
        file=StringIO(), record=True, width=_WIDTH, force_terminal=True, force_jupyter=False, highlight=False
    )
    console.print(frame)
    return console.export_html(inline_styles=True, code_format=f'<pre style="{_PLAIN}">{{code}}</pre>')


def result_html(path: str, status: str, sentences: Iterable[str | None], table: pd.DataFrame | None) -> str:
    """A run or a sweep as a notebook shows it: where it lies, how it is, what is to be said of it, and a table."""
    told = "".join(f"<div>{escape(sentence)}</div>" for sentence in sentences if sentence)
    rows = "" if table is None or table.empty else table.to_html(escape=True, na_rep="", float_format="{:.4g}".format)
    return f"<div><b>{escape(path)}</b>&ensp;{escape(status)}</div>{told}{rows}"


def _bar(label: str, completed: int, total: int, text: str) -> str:
    return (
        f'<div><progress value="{completed}" max="{total}"></progress>'
        f" {escape(f'{label} {completed}/{total} {text}')}</div>"
    )


def _plain(text: str) -> str:
    return f'<pre style="{_PLAIN}">{escape(text)}</pre>'


def _folded(lines: Iterable[str]) -> str:
    lines = list(lines)
    if not lines:
        return ""
    return f"<details><summary>{escape(lines[-1])}</summary>{_plain(chr(10).join(lines))}</details>"
