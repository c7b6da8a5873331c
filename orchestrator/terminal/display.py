"""The display: progress on a terminal, plain lines elsewhere, and the log of both."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from orchestrator.storage import Storage
from orchestrator.terminal.breakpoints import another_debugger, breakpoints
from orchestrator.terminal.driver_log import DriverLog

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

PLAIN_EVERY_S = 30.0
"""Without a terminal, a progress line appears this often."""
_BARS_PER_S = 4


class TerminalDisplay:
    """Shows lines and progress on stderr and keeps the lines in `log.txt`. Driver, or a run in one process.

    On a terminal, progress is a bar for each label, or what `frame` draws in so many lines, asked for every second.
    """

    def __init__(
        self,
        log: Storage | None = None,
        frame: Callable[[int], RenderableType] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = _console()
        self._log, self._clock = DriverLog(log), clock
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
        self._until_end = ExitStack()

    def __enter__(self) -> Self:
        if self._console.is_terminal and not another_debugger():
            self._start()
            self._until_end.enter_context(breakpoints(self.paused))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._stop()
        self._until_end.close()
        self._log.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it nothing is drawn but lines."""
        if self._live is None:
            yield
            return
        self._stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        from rich.live import Live

        per_second = _BARS_PER_S if self._frame is None else 1
        self._live = Live(
            get_renderable=self._drawn, console=self._console, transient=True, refresh_per_second=per_second
        )
        self._live.start(refresh=True)

    def _stop(self) -> None:
        assert self._live is not None
        self._live.stop()
        self._live = None

    def _drawn(self) -> RenderableType:
        return self._progress.get_renderable() if self._frame is None else self._frame(self._console.height)

    def line(self, text: str) -> None:
        """Write one line to stderr, as long as there is one, and to the log."""
        try:
            self._console.print(text, markup=False)
        except (OSError, ValueError):  # closed meanwhile
            self._console.quiet = True
        self._log.add(text)

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """A bar on a terminal; elsewhere a plain line now and then."""
        if self._live is None:
            self._plain(label, completed, total, text)
            return
        if self._frame is not None:
            return
        if label not in self._bars:
            self._bars[label] = self._progress.add_task(label, total=total, text=text)
        self._progress.update(self._bars[label], completed=completed, total=total, text=text)
        if completed >= total:
            self._progress.remove_task(self._bars.pop(label))

    def _plain(self, label: str, completed: int, total: int, text: str) -> None:
        last = self._last_plain.setdefault(label, self._clock())
        if self._clock() - last >= PLAIN_EVERY_S:
            self._last_plain[label] = self._clock()
            self.line(f"{label} {completed}/{total} {text}".rstrip())


def _console() -> Console:
    """A console on stderr that is quiet once nobody reads it, where rich would end the process: training goes on."""
    from rich.console import Console

    class Unbroken(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True

    quiet = sys.stderr is None or sys.stderr.closed
    return Unbroken(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)


def say(text: str) -> None:
    """Write one line to stderr, where there is one."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
