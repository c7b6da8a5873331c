"""The live frame: a run or a sweep as its files tell it, drawn again and again."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from rich.console import RenderableType

from orchestrator.records.run_folder import RunFolder
from orchestrator.terminal.run_frame import run_frame
from orchestrator.terminal.run_status import LiveRun, look_every_s
from orchestrator.terminal.sweep_frame import sweep_frame
from orchestrator.terminal.sweep_status import LiveSweep

LOOKING_SHARE = 0.05
"""The part of the time that looking may take, however much there is to be seen."""


def looked_at(folder: RunFolder) -> tuple[Callable[[], Any], Callable[[Any, int | None], RenderableType]]:
    """What looks at a run or a sweep, and what draws what was seen in so many lines."""
    if folder.metadata().sweep:
        return LiveSweep(folder).look, sweep_frame
    return LiveRun(folder).look, lambda view, lines: run_frame(view)


class LiveFrame:
    """The frame of a run or a sweep, drawn for a display; looks no more often than is worth it."""

    def __init__(self, folder: RunFolder) -> None:
        self._look, self._draw = looked_at(folder)
        self._every_s = look_every_s(folder.storage)
        self._view: Any = None
        self._look_at = -math.inf

    def __call__(self, lines: int) -> RenderableType:
        """How it stands, in so many lines."""
        if (began := monotonic()) >= self._look_at:
            # Whatever is wrong with what is shown, it must not end what is trained; the next look may be better.
            with suppress(Exception):
                self._view = self._look()
            self._look_at = monotonic() + max(self._every_s, (monotonic() - began) / LOOKING_SHARE)
        return self._draw(self._view, lines) if self._view else ""
