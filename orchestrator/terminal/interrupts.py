"""Ctrl-C: the first asks the run to save and end, the second leaves at once. Driver."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from orchestrator.errors import RunError
from orchestrator.terminal.display import say
from orchestrator.terminal.notebook import in_notebook

_HELD_S = 0.5
"""How long Python may keep a signal from its handler before a thread takes it: the main thread may be in a call into
C."""
_CLOCKS_DIFFER_S = 1.0


class Interrupts:
    """Counts SIGINT and SIGTERM while the block runs; `asked` is true after the first, which is answered by what comes
    next. The second ends this process, and whatever it and those below it have started since the block began."""

    def __init__(
        self, how_to_resume: str, next_words: str = "Saving a checkpoint after the step under way, then ending."
    ) -> None:
        self.asked = False
        self._how, self._next = how_to_resume, next_words
        self._before: dict[int, Any] = {}
        self._failure: str | None = None
        self._taken, self._owed = 0, False

    def __enter__(self) -> Self:
        self._began = time.time()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
            if not in_notebook():  # whose event loop hears of signals in the same way
                self._listen()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before and not in_notebook():
            signal.set_wakeup_fd(self._listened_before)
            os.close(self._written)

    def fail(self, why: str) -> None:
        """Raises RunError in the main thread, where it waits in Python or as soon as it comes back to it. Any other
        thread."""
        if not self._before:
            say(f"{why}; this run is not in the main thread, and cannot be ended")
            return
        self._failure = why
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _listen(self) -> None:
        read, self._written = os.pipe()
        os.set_blocking(self._written, False)
        self._listened_before = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        threading.Thread(target=self._stand_in, args=(read,), name="interrupts", daemon=True).start()

    def _stand_in(self, read: int) -> None:
        """Takes the signals that the main thread does not come to."""
        heard = 0
        while numbers := os.read(read, 64):
            heard += sum(number in self._before for number in numbers)
            time.sleep(_HELD_S)
            while self._taken < heard and not self._failure:
                self._owed = True
                self._take()
        os.close(read)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._failure:
            raise RunError(self._failure)
        if self._owed:  # what was taken meanwhile
            self._owed = False
            return
        self._take()

    def _take(self) -> None:
        self._taken += 1
        if not self.asked:
            self.asked = True
            say(f"{self._next} Ctrl-C again leaves at once.")
            return
        say(f"Leaving at once. To go on from the last checkpoint: {self._how}")
        if in_notebook():  # whose kernel holds more than this
            raise KeyboardInterrupt
        ended = self._end_what_was_started()
        if ended:
            say(
                f"Ended {len(ended)} process{'es' if len(ended) > 1 else ''} of the run:"
                f" {', '.join(ended[:8])}{', ...' if len(ended) > 8 else ''}"
            )
        os._exit(130)

    def _end_what_was_started(self) -> list[str]:
        """Ends the processes below this one that are younger than the block, and gives their names."""
        import psutil

        ended = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if process.create_time() >= self._began - _CLOCKS_DIFFER_S:
                    name = f"{process.name()} ({process.pid})"
                    process.kill()
                    ended.append(name)
        return ended
