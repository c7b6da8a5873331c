"""The base of hooks that log means of columns over windows."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from hooks.hook import Hook, Priority, Ranks
from hooks.interval import Interval, Units
from hooks.logs.shared.statistic import Statistic, Window
from hooks.logs.shared.window_statistics import Windows
from hooks.recent import RECENT
from hooks.state import State

LookBack = Annotated[Interval, Units(("iterations",), ge=1, le=RECENT)]
"""An interval after which a hook reads the rows since the last time."""


@dataclass
class WindowLogger(Hook):
    """Base of hooks that log means of columns over windows. Runs on the master."""

    every: LookBack = Interval(50, "iterations")
    """Iterations between two lines or points; the end of a phase adds one."""
    window: Window = "line"
    """Iterations to average loss, times and gradient norms: a number, `line` (since the last),
    `epoch` or `global`."""
    statistics: dict[str, Statistic] = field(default_factory=dict)
    """Additional statistics by name, such as
    `slowest: {column: step_s, method: max, window: epoch}`."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.BELOW_NORMAL
    ranks: ClassVar[Ranks] = Ranks.MASTER
    state_fields: ClassVar[tuple[str, ...]] = ("_windows",)

    def __post_init__(self) -> None:
        self._windows = Windows(self.window, self.statistics)

    def on_phase_start(self, state: State) -> None:
        self._windows.start_phase(state)
