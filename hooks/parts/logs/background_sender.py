"""Sends what a tracker has to say from a thread of its own, so that training never waits for a server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Full, Queue
from time import monotonic

logger = logging.getLogger("hookyard")

WAITING = 1000
"""How many jobs may wait; more are dropped."""


class BackgroundSender:
    """Does jobs one after the other in a background thread of the worker.

    A job that fails is left out, and so are jobs beyond WAITING: the first failure is logged as it happens, the number
    of all that were not done when the sender is closed. Nothing is ever raised. The thread does not keep the process
    alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: Queue[Callable[[], object] | None] = Queue(WAITING)
        self._failed = 0
        self._thread = threading.Thread(target=self._work, name=f"{name}-sender", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], object]) -> None:
        """Leaves a job to be done; returns at once."""
        try:
            self._jobs.put_nowait(job)
        except Full:
            self._left_out(f"{WAITING} messages are waiting already")

    def close(self, wait_s: float) -> None:
        """Waits until all is done, but no longer than `wait_s` seconds."""
        until = monotonic() + wait_s
        try:
            self._jobs.put(None, timeout=wait_s)
        except Full:
            pass
        else:
            self._thread.join(max(0.0, until - monotonic()))
        waiting = self._jobs.qsize() if self._thread.is_alive() else 0
        if self._thread.is_alive() or self._failed:
            logger.warning(
                "%s: %d messages failed, %d were not sent within %g s", self._name, self._failed, waiting, wait_s
            )

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # a server or its package may fail in any way, and the run goes on
                self._left_out(f"{type(error).__name__}: {error}")

    def _left_out(self, reason: str) -> None:
        self._failed += 1
        if self._failed == 1:
            logger.warning("%s cannot send (the run goes on, and it is tried again): %s", self._name, reason)
