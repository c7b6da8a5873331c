"""The display of a driver: progress on a terminal, plain lines elsewhere. It pauses at breakpoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from orchestrator.process.streams import PipeSafe
from orchestrator.storage import Storage
from orchestrator.terminal.debugger import has_other_debugger, pausing_at_breakpoints
from orchestrator.terminal.driver_log import DriverLog

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress import TaskID

PLAIN_INTERVAL_S = 30.0
"""Seconds between progress lines without a terminal."""
_REFRESHES_PER_S = 4
"""How often bars are drawn."""
_FRAMES_PER_S = 1
"""How often a frame is drawn."""


class TerminalDisplay:
    """Display of lines and progress on stderr; it also writes the lines to `log.txt`."""

    def __init__(
        self,
        log: Storage | None = None,
        frame: Callable[[int], RenderableType] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a display.

        Args:
            log: Folder of `log.txt`; None for no log.
            frame: Returns what a terminal shows, given its height in lines; None for one bar per
                label of progress.
            clock: Returns the time in seconds, counted from any moment.
        """
        from rich.console import Console

        stderr: Any = PipeSafe(sys.stderr)
        self._console = Console(file=stderr, highlight=False, soft_wrap=True, emoji=False)
        self._log = DriverLog(log)
        self._clock = clock
        self._last_plain: dict[str, float] = {}
        """When each label's progress was last printed as a line."""
        self._bars = _Bars(self._console)
        self._frame = frame
        self._live: Live | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._console.is_terminal and not has_other_debugger():
            self._start()
            self._stack.enter_context(pausing_at_breakpoints(self.paused))
        return self

    def __exit__(self, *error: object) -> None:
        # The last lines are written whatever else fails.
        with ExitStack() as ends:
            ends.callback(self._log.flush)
            ends.callback(self._stack.close)
            self._stop()

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

        per_second = _REFRESHES_PER_S if self._frame is None else _FRAMES_PER_S
        self._live = Live(
            get_renderable=self._draw,
            console=self._console,
            transient=True,
            refresh_per_second=per_second,
        )
        self._live.start(refresh=True)

    def _stop(self) -> None:
        live = self._live
        self._live = None
        if live is not None:
            live.stop()

    def _draw(self) -> RenderableType:
        if self._frame is None:
            return self._bars.draw()
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
            self._print_progress(label, f"{label} {completed}/{total} {text}".rstrip())
        elif self._frame is None:
            self._bars.update(label, completed, total, text)

    def _print_progress(self, label: str, line: str) -> None:
        now = self._clock()
        if now - self._last_plain.setdefault(label, now) >= PLAIN_INTERVAL_S:
            self._last_plain[label] = now
            self.line(line)


class _Bars:
    """A progress bar for each label, until it is full."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
        )

    def draw(self) -> RenderableType:
        return self._progress.get_renderable()

    def update(self, label: str, completed: int, total: int, text: str) -> None:
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total, text=text)
        self._progress.update(self._tasks[label], completed=completed, total=total, text=text)
        if completed >= total:
            self._progress.remove_task(self._tasks.pop(label))
