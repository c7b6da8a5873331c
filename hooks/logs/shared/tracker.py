"""The base of hooks that send a run to a tracking service, from a separate thread."""

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import Full, Queue
from time import monotonic, time
from typing import ClassVar
from uuid import uuid4

from hooks.duration import Duration
from hooks.logs.shared.curves import CurveLogger
from hooks.media import MediaEntry
from hooks.state import State

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
            pass
        else:
            self._thread.join(max(0.0, until - monotonic()))
        waiting = self._jobs.qsize() if self._thread.is_alive() else 0
        if self._thread.is_alive() or self._failed:
            logger.warning("%s: %d updates were not sent", self._name, self._failed + waiting)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                # A server or its package may fail in any way, and the run continues.
                self._count_failure(f"{type(error).__name__}: {error}")

    def _count_failure(self, reason: str) -> None:
        self._failed += 1
        if self._failed == 1:
            logger.warning("%s: an update was not sent; the run continues: %s", self._name, reason)


@dataclass
class Tracker(CurveLogger):
    """Base of hooks that send curves, metrics, recorded images and tables, and the newest
    checkpoint's path to a service. Runs on the master.

    A hook calls `open` in `on_start` and implements `log`, `log_media`, `note` and `finish`, which
    run in the sender's thread and may fail. Checkpoints keep `run_id`, by which a resumed run finds the
    service's record of this one.
    """

    wait: Duration = 30.0
    """Maximum seconds at the end of the run to wait for unsent messages."""

    best_effort: ClassVar[bool] = True
    evaluates: ClassVar[bool] = False
    state_fields: ClassVar[tuple[str, ...]] = ("run_id",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.run_id = uuid4().hex[:8]
        self._sender: BackgroundSender | None = None

    @abstractmethod
    def log(self, values: Mapping[str, float], position: Mapping[str, int], time_s: float) -> None:
        """Send values. `position` has step, epoch (from 0), iteration and samples of all ranks;
        `time_s` counts from 1970."""

    @abstractmethod
    def log_media(self, entry: MediaEntry, data: bytes) -> None:
        """Send an image, a figure or a table; `data` is the content of its file."""

    @abstractmethod
    def note(self, name: str, value: str) -> None:
        """Send a fact about the run; it replaces an earlier one of the same name."""

    @abstractmethod
    def finish(self, *, failed: bool) -> None:
        """Tell the service that the run has ended."""

    def open(self, name: str, state: State, connect: Callable[[], object]) -> None:
        """Start the sender; `connect` is its first job."""
        self._sender = BackgroundSender(name)
        self._sender.put(connect)
        if state.media is not None:
            state.media.follow(lambda *file: self._put(partial(self.log_media, *file)))

    def draw(self, state: State, points: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        values = {**points, **metrics}
        if not values:
            return
        position = {
            "step": state.step,
            "epoch": state.epoch - state.epoch_completed,
            "iteration": state.iteration,
            "samples": state.world_samples,
        }
        self._put(partial(self.log, values, position, time()))

    def on_saved(self, state: State, path: str) -> None:
        self._put(partial(self.note, "checkpoint", path))

    def on_end(self, state: State) -> None:
        self._close(failed=False)

    def on_exception(self, state: State, error: BaseException) -> None:
        self._close(failed=True)

    def _put(self, job: Callable[[], object]) -> None:
        if self._sender is not None:
            self._sender.put(job)

    def _close(self, *, failed: bool) -> None:
        if self._sender is not None:
            self._sender.put(partial(self.finish, failed=failed))
            self._sender.close(self.wait)
            self._sender = None
