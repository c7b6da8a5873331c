"""The plan: the hooks of each event on this rank, in order."""

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import chain
from math import gcd
from time import perf_counter
from typing import Any

from hooks.errors import HookError, describe_error
from hooks.hook import EVENTS, Hook, Priority, Ranks
from hooks.interval import Interval
from hooks.state import State

logger = logging.getLogger("hookyard")

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


class Plan:
    """The calls of each event on one rank, resolved once at the start, with their costs. Used in
    workers.

    `fire` raises HookError if a hook fails. In `on_exception`, and for best-effort hooks, it logs
    the failure instead.

    The cost of a call is the host's time. With `mark_time`, which marks a moment on a device's
    timeline, the cost of an expensive call is the time between two marks: of the work that it
    launches, not of waiting for earlier work.
    """

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        rank: int = 0,
        local_rank: int = 0,
        mark_time: Callable[[], Any] | None = None,
    ) -> None:
        self._mark_time = mark_time
        self.hooks: dict[str, Hook] = {}
        self.calls: dict[str, tuple[Call, ...]] = {}
        own_rank = {Ranks.ALL: 0, Ranks.MASTER: rank, Ranks.LOCAL_MASTER: local_rank}
        for name, hook in sorted(hooks.items(), key=lambda item: item[1].priority):
            hook.name = name
            if own_rank[hook.ranks] == 0:
                self.hooks[name] = hook
        for event in EVENTS:
            self.calls[event] = tuple(
                self._make_call(name, event)
                for name, hook in self.hooks.items()
                if hook.handles(event)
            )
        self._group_by_interval()

    def _make_call(self, name: str, event: str) -> Call:
        hook = self.hooks[name]
        return Call(
            name,
            event,
            getattr(hook, event),
            hook.best_effort,
            hook.get_interval(event),
            hook.priority,
        )

    def _group_by_interval(self) -> None:
        self._intervals: dict[str, tuple[tuple[Interval, int], ...]] = {}
        """Different intervals of each event, each with its number of iterations or 0."""
        self._common_divisors: dict[str, int] = {}
        """Number that divides every iteration in which an interval of the event is due."""
        self._calls_without_interval = {}
        self.strides: dict[str, int] = {}
        """Number that divides every iteration in which an event has a call to make."""
        for event, calls in self.calls.items():
            intervals = {call.interval for call in calls if call.interval is not None}
            lengths = [
                (interval, interval.count if interval.unit == "iterations" else 0)
                for interval in intervals
            ]
            self._intervals[event] = tuple(lengths)
            # An interval in steps may be due in any iteration.
            self._common_divisors[event] = gcd(*(iterations or 1 for _, iterations in lengths))
            self._calls_without_interval[event] = tuple(
                call for call in calls if call.interval is None
            )
            is_each = bool(self._calls_without_interval[event])
            self.strides[event] = 1 if is_each else self._common_divisors[event]
        self._due_calls: dict[tuple[str, tuple[Interval, ...]], tuple[Call, ...]] = {}

    def _all_calls(self) -> Iterable[Call]:
        return chain.from_iterable(self.calls.values())

    def replace_calls(self, calls: Mapping[str, Iterable[Call]]) -> "Plan":
        """Return a copy of the plan with the calls of some events replaced, sorted by priority."""
        plan = copy(self)
        replaced = {
            event: tuple(sorted(new, key=lambda call: call.priority))
            for event, new in calls.items()
        }
        plan.calls = {**self.calls, **replaced}
        plan._group_by_interval()
        return plan

    def split(self, names: Container[str]) -> tuple["Plan", "Plan"]:
        """Return the plan of the hooks with these names, and the plan of the other hooks."""
        own: dict[str, list[Call]] = {}
        others: dict[str, list[Call]] = {}
        for event, calls in self.calls.items():
            own[event] = [call for call in calls if call.name in names]
            others[event] = [call for call in calls if call.name not in names]
        return self.replace_calls(own), self.replace_calls(others)

    def set_field(self, name: str, field: str, value: Any) -> None:
        """Set a field of a hook between two iterations; no effect on a rank that does not run the
        hook."""
        hook = self.hooks.get(name)
        if hook is None:
            return
        setattr(hook, field, value)
        for call in self._all_calls():
            if call.name == name:
                call.interval = hook.get_interval(call.event)
        self._group_by_interval()

    def fire(self, event: str, *arguments: Any) -> None:
        """Call the hooks of an event that are due, in order, and add the cost of each call."""
        calls = (
            self._calls_due(event, arguments[0]) if self._intervals[event] else self.calls[event]
        )
        if not calls:
            return
        if self._mark_time:
            self._fire_and_time(calls, arguments, self._mark_time)
            return
        last = perf_counter()
        for call in calls:
            try:
                call.run(*arguments)
            except (Exception, SystemExit, GeneratorExit) as error:
                self._handle_failure(call, error)
            now = perf_counter()
            call.total_calls += 1
            call.host_s += now - last
            call.calls += 1
            call.seconds += now - last
            last = now

    def _fire_and_time(
        self, calls: Iterable[Call], arguments: tuple[Any, ...], mark_time: Callable[[], Any]
    ) -> None:
        """Call the hooks; times expensive calls only, because two marks take longer than most
        hooks."""
        for call in calls:
            start_event = mark_time() if call.host_s > EXPENSIVE_S * call.total_calls else None
            host_start = perf_counter()
            try:
                call.run(*arguments)
            except (Exception, SystemExit, GeneratorExit) as error:
                self._handle_failure(call, error)
            seconds = perf_counter() - host_start
            call.total_calls += 1
            call.host_s += seconds
            call.calls += 1
            call.seconds += seconds if start_event is None else mark_time() - start_event

    def _calls_due(self, event: str, state: State) -> tuple[Call, ...]:
        """Return the calls that are due; checks each interval once, so that many idle hooks cost as
        much as one."""
        counted = event == "on_step"
        iteration = state.iterations_before + state.phase_iteration + (not counted)
        if iteration % self._common_divisors[event]:
            return self._calls_without_interval[event]
        due: tuple[Interval, ...] = ()
        for interval, iterations in self._intervals[event]:
            is_due = (
                not iteration % iterations
                if iterations
                else _is_step_due(interval, state, counted=counted)
            )
            if is_due:
                due += (interval,)
        if not due:
            return self._calls_without_interval[event]
        calls = self._due_calls.get((event, due))
        if calls is None:
            calls = tuple(
                call for call in self.calls[event] if call.interval is None or call.interval in due
            )
            self._due_calls[event, due] = calls
        return calls

    def _handle_failure(self, call: Call, error: BaseException) -> None:
        if not call.best_effort and call.event != "on_exception":
            raise HookError.from_error(call.name, call.event, error) from error
        logger.warning(
            "hook '%s' failed in %s (the run continues): %s",
            call.name,
            call.event,
            describe_error(error),
        )

    def stop_device_timing(self) -> None:
        """Time calls on the host from now on. Keep finished device measurements; do not
        synchronize."""
        self._mark_time = None
        for call in self._all_calls():
            if not isinstance(call.seconds, float):
                call.seconds = call.seconds.elapsed_so_far()

    def drain_costs(self) -> list[dict[str, Any]]:
        """Return the cost of each hook at each event since the last drain: hook, event, calls,
        seconds."""
        rows = []
        for call in self._all_calls():
            if not call.calls:
                continue
            cost = {"calls": call.calls, "seconds": float(call.seconds)}
            rows.append({"hook": call.name, "event": call.event, **cost})
            call.calls = 0
            call.seconds = 0.0
        return rows

    def names_by_event(self) -> dict[str, list[str]]:
        """Return the hook names of each event in order, for printing; events without hooks are left
        out."""
        names_by_event = {}
        for event, calls in self.calls.items():
            names = [call.name for call in calls if call.name in self.hooks]
            if names:
                names_by_event[event] = names
        return names_by_event


def format_priority(value: int) -> str:
    """Format a priority: `NORMAL (50)` for a named level, otherwise the number."""
    return f"{Priority(value).name} ({value})" if value in set(Priority) else str(value)


def _is_step_due(interval: Interval, state: State, *, counted: bool) -> bool:
    """Return whether an interval in steps ends with the current iteration, which the counters
    include if `counted`."""
    if interval.unit != "steps" or interval.count == 0 or state.phase != "train":
        return False
    if counted:
        return state.stepped and state.step % interval.count == 0
    return (state.step + 1) % interval.count == 0
