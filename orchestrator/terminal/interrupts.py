"""Ctrl-C: the first asks the run to save and end, the second leaves at once. Driver."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Self

from orchestrator.terminal.display import say
from orchestrator.terminal.notebook import in_notebook


class Interrupts:
    """Counts SIGINT and SIGTERM while the block runs; `asked` is true after the first, which is answered by what comes next."""

    def __init__(self, how_to_resume: str, next_words: str = "Saving a checkpoint, then ending.") -> None:
        self.asked = False
        self._how, self._next = how_to_resume, next_words
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            say(f"Leaving at once. To go on from the last checkpoint: {self._how}")
            if in_notebook():  # whose kernel holds more than this
                raise KeyboardInterrupt
            os._exit(130)
        self.asked = True
        say(f"{self._next} Ctrl-C again leaves at once.")
