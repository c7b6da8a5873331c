"""The frame of a run or a sweep that lives, for `watch` and for the driver's terminal."""

import math
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from orchestrator.disk.run_folder import RunFolder
from orchestrator.terminal.printable import escape_controls
from orchestrator.terminal.run_frame import draw_run_frame
from orchestrator.terminal.run_status import LiveRun
from orchestrator.terminal.run_view import RunView
from orchestrator.terminal.sweep_frame import draw_sweep_frame
from orchestrator.terminal.sweep_status import LiveSweep
from orchestrator.terminal.sweep_view import SweepView

MAX_READ_SHARE = 0.05
"""Maximum share of the time for reading files."""


class LiveFrame:
    """Frame of a run or a sweep for a display, which calls it with the number of lines."""

    def __init__(self, folder: RunFolder) -> None:
        self.every_s = folder.storage.read_interval_s
        """Seconds between two reads."""
        is_sweep = folder.read_metadata().sweep is not None
        self._reader = LiveSweep(folder) if is_sweep else LiveRun(folder)
        self._view: RunView | SweepView | None = None
        self._next_read = -math.inf

    def __call__(self, lines: int) -> RenderableType:
        start = monotonic()
        if start >= self._next_read:
            # A display must never end training, and the next read may succeed.
            with suppress(Exception):
                self._view = self.read_view()
            took_s = monotonic() - start
            self._next_read = monotonic() + max(self.every_s, took_s / MAX_READ_SHARE)
        return self.draw(self._view, lines) if self._view else ""

    def read_view(self) -> RunView | SweepView:
        """Read new data, and return the state of the run or the sweep."""
        return self._reader.read_view()

    def draw(self, view: RunView | SweepView, lines: int | None) -> RenderableType:
        """Render a view in a number of lines, or as a whole."""
        if isinstance(view, SweepView):
            return draw_sweep_frame(view, lines)
        return draw_run_frame(view, lines)


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
