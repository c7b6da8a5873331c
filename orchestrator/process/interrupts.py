"""Ctrl-C: the first requests the run to save and end, the second exits immediately. Used in the
driver."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any, Self

from orchestrator.errors import RunError
from orchestrator.process.child_signals import for_children
from orchestrator.process.streams import is_notebook, print_line
from orchestrator.process.wakeups import watching_signals

_MAIN_THREAD_TIMEOUT_S = 0.5
"""Seconds to wait for the main thread, which may be in a call into C, before another thread handles
a signal."""
_CLOCK_ERROR_S = 1.0
"""Seconds by which the clock of the processes' start times may differ."""


@contextmanager
def interrupt_at_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM, as at Ctrl-C, so that the block can clean up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupts:
    """Context manager that counts SIGINT and SIGTERM, and SIGHUP of a terminal that is closed.

    The first sets `requested` and prints `message`. The second ends this process and the processes
    that it started within the block, and prints `resume_command`. A SIGHUP is never the second,
    because a shell and the kernel both send it.
    """

    def __init__(
        self,
        resume_command: str,
        message: str = "Saving a checkpoint after the current step, then ending.",
    ) -> None:
        self.requested = False
        self._resume_command = resume_command
        self._message = message
        self._started_at = 0.0
        """Unix time at which the block began."""
        self._previous_handlers: dict[int, Any] = {}
        """Handlers before the block, by signal; empty in another thread than the main thread."""
        self._watch = ExitStack()
        self._received = Counter[int]()
        """Signals that have arrived, by number."""
        self._count = 0
        """Signals that were handled, by either thread."""
        self._is_handled = False
        """Whether the other thread has handled the signal that the main thread handles next."""
        self._failure: str | None = None

    def __enter__(self) -> Self:
        self._started_at = time.time()
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._previous_handlers[number] = signal.signal(number, self._handle)
        # The event loop of a notebook owns the wakeup file descriptor.
        if not is_notebook():
            self._watch.enter_context(watching_signals(self._handle_late))
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._watch.close()

    def fail(self, reason: str) -> None:
        """Raise RunError in the main thread as soon as it runs Python code. Called in another
        thread."""
        if not self._previous_handlers:
            print_line(f"{reason}; this run is not in the main thread, and cannot be ended")
            return
        self._failure = reason
        # A signal that is ignored, as SIGINT in a background job of a script, has no handler here.
        handled = next(iter(self._previous_handlers))
        signal.pthread_kill(threading.main_thread().ident or 0, handled)

    def _handle_late(self, numbers: bytes) -> None:
        """Handle signals that the main thread does not handle in time. Called in another thread."""
        self._received.update(numbers)
        interrupts = self._received[signal.SIGINT] + self._received[signal.SIGTERM]
        count = interrupts or min(self._received[signal.SIGHUP], 1)
        time.sleep(_MAIN_THREAD_TIMEOUT_S)
        while self._count < count and not self._failure:
            self._is_handled = True
            self._handle_interrupt()

    @for_children
    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._failure:
            raise RunError(self._failure)
        # The other thread may have been faster.
        if self._is_handled:
            self._is_handled = False
            return
        if number == signal.SIGHUP and self.requested:
            return
        self._handle_interrupt()

    def _handle_interrupt(self) -> None:
        self._count += 1
        if not self.requested:
            self.requested = True
            print_line(f"{self._message} Press Ctrl-C again to exit at once.")
            return
        print_line(f"Exiting at once. To resume from the last checkpoint: {self._resume_command}")
        # The kernel of a notebook must survive.
        if is_notebook():
            raise KeyboardInterrupt

        killed = _kill_children(self._started_at)
        if killed:
            names = ", ".join(killed[:8])
            more = ", ..." if len(killed) > 8 else ""
            noun = "processes" if len(killed) > 1 else "process"
            print_line(f"Ended {len(killed)} {noun} of the run: {names}{more}")
        os._exit(130)


def _kill_children(started_at: float) -> list[str]:
    """Kill the processes below this one that started after a Unix time; return their names."""
    import psutil  # a slow import

    killed = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.create_time() >= started_at - _CLOCK_ERROR_S:
                name = f"{process.name()} ({process.pid})"
                process.kill()
                killed.append(name)
    return killed
