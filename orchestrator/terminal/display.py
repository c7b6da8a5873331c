"""The display: progress on a terminal, plain lines elsewhere, and the driver's log. It pauses at
breakpoints."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout, suppress
from pdb import Pdb
from typing import TYPE_CHECKING, Any, Self

from orchestrator.errors import StorageError
from orchestrator.process.streams import PipeSafe
from orchestrator.storage import Storage

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

PLAIN_INTERVAL_S = 30.0
"""Seconds between progress lines without a terminal."""
_REFRESHES_PER_S = 4
_LOG_BATCH_LINES = 20
"""Lines per write on an object store, where each write replaces the whole log."""

_logger = logging.getLogger("hookyard")


class DriverLog:
    """Log of lines with their time in `log.txt`; without a storage, it drops them."""

    def __init__(self, storage: Storage | None) -> None:
        self._storage = storage
        self._batch = 1 if storage and storage.local else _LOG_BATCH_LINES
        self._pending: list[str] = []

    def add(self, text: str) -> None:
        self._pending.append(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
        if len(self._pending) >= self._batch:
            self.flush()

    def flush(self) -> None:
        lines = self._pending
        self._pending = []
        if self._storage is None or not lines:
            return
        try:
            self._storage.append("log.txt", "".join(lines))
        # A failed write of the log must not end training or mask an earlier error.
        except StorageError as error:
            _logger.warning("%d lines are missing from the log: %s", len(lines), error)


class TerminalDisplay:
    """Display of lines and progress on stderr; it also writes the lines to `log.txt`.

    On a terminal, progress is one bar per label, or the result of `frame`, which is called with the
    terminal's height.
    """

    def __init__(
        self,
        log: Storage | None = None,
        frame: Callable[[int], RenderableType] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        stderr: Any = PipeSafe(sys.stderr)
        self._console = Console(file=stderr, highlight=False, soft_wrap=True)
        self._log = DriverLog(log)
        self._clock = clock
        self._last_plain: dict[str, float] = {}
        self._bars: dict[str, Any] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
        )
        self._frame = frame
        self._live: Live | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._console.is_terminal and not has_other_debugger():
            self._start()
            self._stack.enter_context(pausing_at_breakpoints(self.paused))
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        self._stack.close()
        self._log.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop drawing progress while the block runs."""
        was_live = self._live is not None
        self._stop()
        try:
            yield
        finally:
            if was_live:
                self._start()

    def _start(self) -> None:
        from rich.live import Live

        per_second = _REFRESHES_PER_S if self._frame is None else 1
        self._live = Live(
            get_renderable=self._draw,
            console=self._console,
            transient=True,
            refresh_per_second=per_second,
        )
        self._live.start(refresh=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> RenderableType:
        if self._frame is None:
            return self._progress.get_renderable()
        return self._frame(self._console.height)

    def line(self, text: str) -> None:
        """Write one line to stderr and to the log."""
        # A terminal that is gone, or a full disk, must not end training.
        with suppress(OSError):
            self._console.print(text, markup=False)
        self._log.add(text)

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Update the bar on a terminal; otherwise print a line every PLAIN_INTERVAL_S."""
        if self._live is None:
            now = self._clock()
            if now - self._last_plain.setdefault(label, now) >= PLAIN_INTERVAL_S:
                self._last_plain[label] = now
                self.line(f"{label} {completed}/{total} {text}".rstrip())
        elif self._frame is None:
            if label not in self._bars:
                self._bars[label] = self._progress.add_task(label, total=total, text=text)
            self._progress.update(self._bars[label], completed=completed, total=total, text=text)
            if completed >= total:
                self._progress.remove_task(self._bars.pop(label))


_VARIABLE = "PYTHONBREAKPOINT"


def has_other_debugger() -> bool:
    """Return whether the environment sets a debugger other than pdb for `breakpoint()`."""
    return os.environ.get(_VARIABLE, "") not in ("", "0", "pdb.set_trace")


@contextmanager
def pausing_at_breakpoints(paused: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Make `breakpoint()` open pdb within the context manager `paused`, which pauses the
    display."""

    def stop(*args: Any, **kwargs: Any) -> None:
        frame = inspect.currentframe()
        Debugger(paused).set_trace(frame and frame.f_back)

    if os.environ.get(_VARIABLE) == "0":
        yield
        return
    previous_hook = sys.breakpointhook
    sys.breakpointhook = stop
    try:
        yield
    finally:
        sys.breakpointhook = previous_hook


class Debugger(Pdb):
    """pdb on this terminal, even while stdout is redirected. Ctrl-C still ends the run."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(nosigint=True)
        self._paused = paused

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        # The pause also restores the stdout that the display had replaced.
        with self._paused():
            terminal: Any = sys.__stdout__
            self.stdout = terminal if terminal is not None and terminal.isatty() else sys.stdout
            with redirect_stdout(self.stdout):
                super().interaction(*args, **kwargs)
