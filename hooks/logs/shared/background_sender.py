"""A thread that sends messages to a server, so that training never waits."""

import logging
import threading
from collections.abc import Callable
from queue import Full, Queue
from time import monotonic

from hooks.counts import format_count

logger = logging.getLogger("hookyard")

MOST_WAITING = 1000
"""Maximum number of waiting jobs; more are dropped."""


class BackgroundSender:
    """Thread that runs jobs one after another, so that training never waits for a server.

    Failed jobs and dropped jobs are counted. The first failure is logged at once, and the total at
    the end. It raises nothing, and the thread does not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: Queue[Callable[[], object] | None] = Queue(MOST_WAITING)
        """Jobs to do; None ends the thread."""
        self._failed = 0
        self._thread = threading.Thread(target=self._work, name=f"{name}-sender", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], object]) -> None:
        """Add a job; does not block."""
        try:
            self._jobs.put_nowait(job)
        except Full:
            self._count_failure(f"{MOST_WAITING} messages are waiting already")

    def close(self, wait_s: float) -> None:
        """Wait until all jobs are done, at most `wait_s` seconds."""
        until = monotonic() + wait_s
        try:
            self._jobs.put(None, timeout=wait_s)
        except Full:
            waiting = self._jobs.qsize()
        else:
            self._thread.join(max(0.0, until - monotonic()))
            waiting = self._jobs.qsize() - 1  # the request to end is no job

        unsent = self._failed
        if self._thread.is_alive():
            unsent += waiting + 1  # the job in progress
        if unsent:
            logger.warning("%s did not send %s", self._name, format_count(unsent, "update"))

    def _work(self) -> None:
        for job in iter(self._jobs.get, None):
            try:
                job()
            except Exception as error:
                # A server or its package may fail in any way, and the run continues.
                self._count_failure(f"{type(error).__name__}: {error}")

    def _count_failure(self, reason: str) -> None:
        self._failed += 1
        if self._failed == 1:
            logger.warning("%s: an update was not sent; the run continues: %s", self._name, reason)
