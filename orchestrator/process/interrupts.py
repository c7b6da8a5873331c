"""Ctrl-C: the first requests the run to save and end, the second exits immediately. Used in the
driver."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

from orchestrator.errors import RunError
from orchestrator.process.child_signals import for_children
from orchestrator.process.streams import is_notebook, print_line

_MAIN_THREAD_TIMEOUT_S = 0.5
"""Seconds to wait for the main thread, which may be in a call into C, before another thread handles
a signal."""
_CLOCK_ERROR_S = 1.0


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
        self._handlers: dict[int, Any] = {}
        self._failure: str | None = None
        self._count = 0
        self._is_handled = False

    def __enter__(self) -> Self:
        self._started_at = time.time()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    self._handlers[number] = signal.signal(number, self._handle)
            # The event loop of a notebook owns the wakeup file descriptor.
            if not is_notebook():
                self._watch_wakeups()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._handlers and not is_notebook():
            signal.set_wakeup_fd(self._previous_wakeup)
            os.close(self._wakeup)

    def fail(self, reason: str) -> None:
        """Raise RunError in the main thread as soon as it runs Python code. Called in another
        thread."""
        if not self._handlers:
            print_line(f"{reason}; this run is not in the main thread, and cannot be ended")
            return
        self._failure = reason
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _watch_wakeups(self) -> None:
        read, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._previous_wakeup = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        late = threading.Thread(
            target=self._handle_late, args=(read,), name="interrupts", daemon=True
        )
        late.start()

    def _handle_late(self, read: int) -> None:
        """Handle signals that the main thread does not handle in time."""
        counts = Counter[int]()
        while numbers := os.read(read, 64):
            counts.update(numbers)
            received = counts[signal.SIGINT] + counts[signal.SIGTERM]
            received = received or min(counts[signal.SIGHUP], 1)
            time.sleep(_MAIN_THREAD_TIMEOUT_S)
            while self._count < received and not self._failure:
                self._is_handled = True
                self._handle_interrupt()
        os.close(read)

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

        killed = self._kill_processes()
        if killed:
            names = ", ".join(killed[:8])
            more = ", ..." if len(killed) > 8 else ""
            noun = "processes" if len(killed) > 1 else "process"
            print_line(f"Ended {len(killed)} {noun} of the run: {names}{more}")
        os._exit(130)

    def _kill_processes(self) -> list[str]:
        """Kill the child processes that started within the block, and return their names."""
        import psutil

        killed = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if process.create_time() >= self._started_at - _CLOCK_ERROR_S:
                    name = f"{process.name()} ({process.pid})"
                    process.kill()
                    killed.append(name)
        return killed
