"""The base of hooks that send a run to a tracking service, from a separate thread."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import time
from typing import ClassVar
from uuid import uuid4

from hooks.duration import Duration
from hooks.logs.shared.background_sender import BackgroundSender
from hooks.logs.shared.curves import CurveLogger
from hooks.media import MediaEntry
from hooks.state import State


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
            "epoch": state.epoch_number - 1,
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
            self._sender.close(partial(self.finish, failed=failed), self.wait)
            self._sender = None
