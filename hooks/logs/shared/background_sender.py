"""A thread that sends messages to a server, so that training never waits."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from time import monotonic

from hooks.counts import format_count
from hooks.errors import describe_error

logger = logging.getLogger("hookyard")

MOST_WAITING = 1000
"""Maximum number of waiting jobs; more are dropped."""


class BackgroundSender:
    """Thread that runs jobs one after another, so that training never waits for a server.

    The first failure is logged at once, and the number of jobs that failed or were dropped at the
    end. It raises nothing, and the thread does not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: Queue[Callable[[], object] | None] = Queue(MOST_WAITING)
        """Jobs to do; None ends the thread."""
        self._requested = 0
        self._done = 0
        self._has_failure = False
        self._thread = threading.Thread(target=self._work, name=f"{name}-sender", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], object]) -> None:
        """Add a job; does not block."""
        self._requested += 1
        try:
            self._jobs.put_nowait(job)
        except Full:
            self._log_failure(f"{MOST_WAITING} messages are waiting already")

    def close(self, last_job: Callable[[], object], wait_s: float) -> None:
        """Add the last job, and wait until all jobs are done, at most `wait_s` seconds."""
        until = monotonic() + wait_s
        self._requested += 1
        with suppress(Full):
            self._jobs.put(last_job, timeout=wait_s)
            self._jobs.put(None, timeout=max(0.0, until - monotonic()))
            self._thread.join(max(0.0, until - monotonic()))
        unsent = self._requested - self._done
        if unsent:
            logger.warning("%s did not send %s", self._name, format_count(unsent, "update"))

    def _work(self) -> None:
        for job in iter(self._jobs.get, None):
            try:
                job()
            # A server or its package may fail in any way, also by sys.exit, and the run continues.
            except BaseException as error:
                self._log_failure(describe_error(error))
            else:
                self._done += 1

    def _log_failure(self, reason: str) -> None:
        """Log the first failure."""
        if not self._has_failure:
            self._has_failure = True
            logger.warning("%s: an update was not sent; the run continues: %s", self._name, reason)
