"""Uploading in a thread, at regular intervals."""

import logging
from collections.abc import Callable
from threading import Event, Thread

_log = logging.getLogger("hookyard")


class PeriodicUpload:
    """A thread that calls `upload` every `interval_s` seconds. It tries again after an error, and
    logs only the first of several in a row."""

    def __init__(self, upload: Callable[[], None], interval_s: float, folder: str) -> None:
        self._upload = upload
        self._interval_s = interval_s
        self._folder = folder
        self._thread: Thread | None = None
        self._stopped = Event()

    def start(self) -> None:
        """Start the thread, unless it has started."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="rows", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Begin no more uploads; one that has begun may still be running."""
        self._stopped.set()

    def _run(self) -> None:
        is_failing = False
        while not self._stopped.wait(self._interval_s):
            try:
                self._upload()
                is_failing = False
            except Exception as error:  # the last `sync` raises it if it persists
                if not is_failing:
                    message = "Cannot upload rows of %s; will try again: %s"
                    _log.warning(message, self._folder, error)
                is_failing = True
