"""The hang reporter: prints which rank hangs, where, and which ranks wait for it.

A thread of the driver, because the driver itself waits for the ranks.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import Self

from hooks.errors import describe_error
from hooks.loop_services import Display
from orchestrator.disk.hang_reports import FOLDER, REQUEST, find_hang
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import HookyardError
from orchestrator.storage.omissions import warn_once

STACK_REQUEST_DELAY_S = 3.0
"""Seconds after Ctrl-C before the stacks of ranks that are still running are requested."""

_log = logging.getLogger("hookyard")


@contextmanager
def _surviving_errors(subject: object) -> Iterator[None]:
    """Log an error of a check. If it ended the thread, nobody would learn of later hangs."""
    try:
        yield
    except (HookyardError, OSError) as error:
        _log.debug("%s cannot be checked for hangs: %s", subject, error)
    except Exception as error:
        warn_once(f"{subject} cannot be checked for hangs: {describe_error(error)}")


class HangReporter:
    """Reporter of hangs: it prints each hang of the active runs once, and its end. The log gets the
    stacks too.

    A few seconds after Ctrl-C, when `is_ending` returns true, the lines say that the run waits for
    the hung rank to end. `send_hang` is called with the run's name and the line of each hang.
    """

    def __init__(
        self,
        active_runs: Callable[[], Sequence[RunFolder]],
        display: Display,
        is_ending: Callable[[], bool],
        send_hang: Callable[[str, str], None] = lambda name, text: None,
    ) -> None:
        self._active_runs = active_runs
        self._display = display
        self._is_ending = is_ending
        self._send_hang = send_hang
        self._hung: dict[str, tuple[int, ...]] = {}
        """Hung ranks that were printed, by the run's location."""
        self._interrupted_at: float | None = None
        self._requested_stacks: set[str] = set()
        self._folders: dict[str, RunFolder] = {}
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="hang-reporter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        for folder in self._folders.values():
            with suppress(HookyardError, OSError):
                folder.storage.delete(FOLDER)

    def _watch(self) -> None:
        every_s = 1.0
        while not self._stop.wait(every_s):
            with _surviving_errors("the run"):
                if self._interrupted_at is None and self._is_ending():
                    self._interrupted_at = monotonic()
                for folder in self._active_runs():
                    with _surviving_errors(folder):
                        every_s = folder.storage.read_interval_s
                        self._check(folder)

    def _check(self, folder: RunFolder) -> None:
        location = folder.location
        self._folders[location] = folder
        self._request_stacks(folder)

        hang = find_hang(folder)
        if (hang.ranks if hang else None) == self._hung.get(location):
            return
        if hang is None:
            del self._hung[location]
            self._display.line(f"{folder.name} makes progress again")
            return
        self._hung[location] = hang.ranks
        prefix = "waiting for a hung process to end: " if self._is_late() else ""
        log = f" (stack: {folder}/log.txt)" if hang.stacks else ""
        self._display.line(f"{folder.name}: {prefix}{hang}{log}")
        self._send_hang(folder.name, str(hang))
        folder.log(hang.stacks)

    def _request_stacks(self, folder: RunFolder) -> None:
        """Request the stacks of ranks that still run a few seconds after Ctrl-C, once."""
        is_requested = folder.location in self._requested_stacks
        if self._is_late() and not is_requested and folder.storage.local:
            self._requested_stacks.add(folder.location)
            folder.storage.write(REQUEST, "")

    def _is_late(self) -> bool:
        """Return whether Ctrl-C was some seconds ago."""
        interrupted_at = self._interrupted_at
        return interrupted_at is not None and monotonic() - interrupted_at >= STACK_REQUEST_DELAY_S
