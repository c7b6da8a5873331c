"""The calls of one event, and which of them are due in an iteration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from hooks.hook import Priority
from hooks.interval import Interval
from hooks.state import State

EXPENSIVE_S = 5e-6
"""Host time above which a call may use the device: launching one operation takes about as long."""


@dataclass
class Call:
    """A hook's handler of an event, with its cost so far."""

    name: str
    event: str
    run: Callable[..., None]
    best_effort: bool = False
    interval: Interval | None = None
    """Interval between calls; None calls it at every event."""
    priority: int = Priority.NORMAL
    calls: int = 0
    seconds: Any = 0.0
    """Seconds since the last drain: a float, or a device timer that `float` converts."""
    total_calls: int = 0
    host_s: float = 200 * EXPENSIVE_S
    """Host seconds of all calls; starts high, so that the first 200 calls count as expensive."""


class EventCalls:
    """The calls of one event in order. Each interval is checked once, so that many idle hooks cost
    as much as one.

    Args:
        event: Name of the event.
        calls: Its calls. Changes of their intervals need a new object.
    """

    def __init__(self, event: str, calls: Sequence[Call]) -> None:
        self.calls = tuple(calls)
        self._is_counted = event == "on_step"
        """Whether the counters of the state include the current iteration."""
        self._calls_without_interval = tuple(call for call in calls if call.interval is None)
        intervals = {call.interval for call in calls if call.interval is not None}
        self._intervals = tuple(intervals)
        self._common_divisor = gcd(*map(_get_divisor, intervals))
        """Number that divides every iteration in which an interval is due."""
        self._due_calls: dict[tuple[Interval, ...], tuple[Call, ...]] = {}

    @property
    def has_intervals(self) -> bool:
        """Whether `select_due` may leave out a call."""
        return bool(self._intervals)

    @property
    def stride(self) -> int:
        """Number that divides every iteration in which there is a call to make."""
        return 1 if self._calls_without_interval else self._common_divisor

    def select_due(self, state: State) -> tuple[Call, ...]:
        """Return the calls that are due in the current iteration."""
        iteration = state.iterations_before + state.phase_iteration
        if not self._is_counted:
            iteration += 1
        if iteration % self._common_divisor:
            return self._calls_without_interval

        due = tuple(
            interval for interval in self._intervals if self._is_due(interval, iteration, state)
        )
        if not due:
            return self._calls_without_interval
        if due not in self._due_calls:
            self._due_calls[due] = tuple(
                call for call in self.calls if call.interval is None or call.interval in due
            )
        return self._due_calls[due]

    def _is_due(self, interval: Interval, iteration: int, state: State) -> bool:
        """Return whether an interval ends with the current iteration."""
        if interval.count == 0:
            return False
        if interval.unit == "iterations":
            return iteration % interval.count == 0
        if interval.unit == "epochs" or state.phase != "train":
            return False
        if self._is_counted:
            return state.stepped and state.step % interval.count == 0
        return (state.step + 1) % interval.count == 0


def _get_divisor(interval: Interval) -> int:
    """Return a number that divides every iteration in which an interval is due."""
    if interval.unit == "iterations" and interval.count > 0:
        return interval.count
    return 1  # An interval in steps may be due in any iteration.
