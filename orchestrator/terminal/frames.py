"""The frame of a run or a sweep that lives, for `watch` and for the driver's terminal."""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from orchestrator.disk.run_folder import RunFolder
from orchestrator.terminal.printable import escape_controls
from orchestrator.terminal.run_frame import draw_run_frame
from orchestrator.terminal.run_status import LiveRun
from orchestrator.terminal.sweep_frame import draw_sweep_frame
from orchestrator.terminal.sweep_status import LiveSweep

MAX_READ_SHARE = 0.05
"""Maximum share of the time for reading files."""


class LiveFrame:
    """Frame of a run or a sweep for a display, which calls it with the number of lines."""

    def __init__(self, folder: RunFolder) -> None:
        self.read_view: Callable[[], Any]
        """Function that reads new data and returns the view."""
        self.draw: Callable[[Any, int | None], RenderableType]
        """Function that renders a view in a number of lines."""
        if folder.read_metadata().sweep:
            self.read_view = LiveSweep(folder).read_view
            self.draw = draw_sweep_frame
        else:
            self.read_view = LiveRun(folder).read_view
            self.draw = draw_run_frame

        self.every_s = folder.read_interval_s
        self._view: Any = None
        self._next_look = -math.inf

    def __call__(self, lines: int) -> RenderableType:
        start = monotonic()
        if start >= self._next_look:
            # A display must never end training, and the next read may succeed.
            with suppress(Exception):
                self._view = self.read_view()
            took_s = monotonic() - start
            self._next_look = monotonic() + max(self.every_s, took_s / MAX_READ_SHARE)
        return self.draw(self._view, lines) if self._view else ""


class PrintableConsole(Console):
    """A console that escapes control characters in the text of stored runs."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(escape_controls(segment.text), segment.style)
