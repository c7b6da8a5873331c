"""The plan: the hooks of each event on this rank, in order."""

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from itertools import chain
from time import perf_counter
from typing import Any

from hooks.due_calls import EXPENSIVE_S, Call, EventCalls
from hooks.errors import HookError, describe_error
from hooks.hook import EVENTS, Hook, Priority, Ranks

logger = logging.getLogger("hookyard")


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
        """Hooks of this rank by name, by priority."""
        for name, hook in sorted(hooks.items(), key=lambda item: item[1].priority):
            hook.name = name
            if _runs_on(hook.ranks, rank, local_rank):
                self.hooks[name] = hook
        self._set_calls({event: self._make_calls(event) for event in EVENTS})

    def _make_calls(self, event: str) -> list[Call]:
        return [
            Call(
                name,
                event,
                getattr(hook, event),
                hook.best_effort,
                hook.get_interval(event),
                hook.priority,
            )
            for name, hook in self.hooks.items()
            if hook.handles(event)
        ]

    def _set_calls(self, calls: Mapping[str, Sequence[Call]]) -> None:
        self._events = {event: EventCalls(event, own) for event, own in calls.items()}
        self.calls = {event: own.calls for event, own in self._events.items()}
        """Calls of each event in order."""
        self.strides = {event: own.stride for event, own in self._events.items()}
        """Number that divides every iteration in which an event has a call to make."""

    def _all_calls(self) -> Iterable[Call]:
        return chain.from_iterable(self.calls.values())

    def replace_calls(self, calls: Mapping[str, Iterable[Call]]) -> "Plan":
        """Return a copy of the plan with the calls of some events replaced, sorted by priority."""
        plan = copy(self)
        replaced = {
            event: tuple(sorted(new, key=lambda call: call.priority))
            for event, new in calls.items()
        }
        plan._set_calls({**self.calls, **replaced})
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
        self._set_calls(self.calls)

    def fire(self, event: str, *arguments: Any) -> None:
        """Call the hooks of an event that are due, in order, and add the cost of each call."""
        event_calls = self._events[event]
        calls = event_calls.calls
        if event_calls.has_intervals:
            calls = event_calls.select_due(arguments[0])
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


def _runs_on(ranks: Ranks, rank: int, local_rank: int) -> bool:
    match ranks:
        case Ranks.ALL:
            return True
        case Ranks.MASTER:
            return rank == 0
        case Ranks.LOCAL_MASTER:
            return local_rank == 0
