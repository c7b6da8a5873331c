"""What hooks have in common that send a run to a tracking service: when something is said, and in which thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import time
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from hooks.hook import Priority, Ranks
from hooks.interval import Interval, paced_by
from hooks.parts.logs.background_sender import BackgroundSender
from hooks.parts.logs.curve_names import Curves
from hooks.parts.logs.window_statistics import LookBack, Size, Statistic
from hooks.state import State


@dataclass(frozen=True)
class Point:
    """Where in a run values belong."""

    step: int
    epoch: int
    iteration: int
    samples: int
    """Those of all ranks."""
    time_s: float
    """Since 1970."""


@dataclass
class Tracker(ABC):
    """The part of a hook that sends curves, metrics and the newest checkpoint's path to a service.

    Runs on the master. A hook opens it in `on_start`, with its first job, and brings `log`, `note` and `finish`, which
    are called in a thread of their own and may fail. `run_id`, the service's name for the run, is kept in checkpoints.
    """

    every: LookBack = Interval(50, "iterations")
    """Training iterations between two points; there is one more for what is left as training's phase ends."""
    window: Size = "line"
    """What loss, times and gradient norms are averaged over: `line` (since the point before), a number of iterations,
    `epoch` or `global`."""
    statistics: dict[str, Statistic] = field(default_factory=dict)
    """Statistics of columns by a name of their own, such as `slowest: {column: step_s, method: max, window: epoch}`."""
    wait_s: Annotated[float, Ge(0)] = 30.0
    """Seconds to wait at the end of the run for what is still to be sent."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.BELOW_NORMAL
    ranks: ClassVar[Ranks] = Ranks.MASTER
    best_effort: ClassVar[bool] = True
    evaluates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.run_id: str | None = None
        self._curves = Curves(self.window, self.statistics)
        self._sender: BackgroundSender | None = None

    @abstractmethod
    def log(self, values: Mapping[str, float], at: Point) -> None:
        """Sends values."""

    @abstractmethod
    def note(self, name: str, value: str) -> None:
        """Sends what is known of the run; a later value takes the place of an earlier one."""

    @abstractmethod
    def finish(self, *, failed: bool) -> None:
        """Says that the run is over."""

    def open(self, name: str, connect: Callable[[], object]) -> None:
        """Begins to send, `connect` before all else."""
        self._sender = BackgroundSender(name)
        self._sender.put(connect)

    def on_phase_start(self, state: State) -> None:
        self._curves.start_phase(state)

    @paced_by("every")
    def on_step(self, state: State) -> None:
        if state.phase == "train":
            self._send(state, self._curves.point(state))

    def on_phase_end(self, state: State) -> None:
        self._send(state, {**self._curves.rest(state), **self._curves.metrics(state)})

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        self._send(state, self._curves.reported(state, metrics))

    def on_saved(self, state: State, path: str) -> None:
        self._put(partial(self.note, "checkpoint", path))

    def on_end(self, state: State) -> None:
        self._close(failed=False)

    def on_exception(self, state: State, error: BaseException) -> None:
        self._close(failed=True)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "curves": self._curves.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.run_id = state["run_id"]
        self._curves.load_state_dict(state["curves"])

    def _send(self, state: State, values: Mapping[str, float]) -> None:
        if values:
            self._put(
                partial(self.log, values, Point(state.step, state.epoch, state.iteration, state.world_samples, time()))
            )

    def _put(self, job: Callable[[], object]) -> None:
        if self._sender is not None:
            self._sender.put(job)

    def _close(self, *, failed: bool) -> None:
        if self._sender is not None:
            self._sender.put(partial(self.finish, failed=failed))
            self._sender.close(self.wait_s)
            self._sender = None
