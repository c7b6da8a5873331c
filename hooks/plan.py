"""The plan: which hook runs at which event, in which order, on this rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from time import perf_counter
from typing import Any

from hooks.call import DEAR_S, Call
from hooks.error_text import named_text
from hooks.hook import EVENTS, Hook, Priority, Ranks
from hooks.interval import Interval, under_way
from hooks.state import State

logger = logging.getLogger("hookyard")


class HookError(RuntimeError):
    """A hook failed: its name, the event and the cause."""

    def __init__(self, hook: str, event: str, rank: int, cause: str) -> None:
        super().__init__(f"hook '{hook}' failed in {event} on rank {rank}: {cause}")
        self.hook, self.event, self.rank, self.cause = hook, event, rank, cause

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.hook, self.event, self.rank, self.cause)


def runs_on(hook: Hook, rank: int, local_rank: int) -> bool:
    """Whether a rank runs a hook."""
    if hook.ranks is Ranks.MASTER:
        return rank == 0
    if hook.ranks is Ranks.LOCAL_MASTER:
        return local_rank == 0
    return True


def in_order(hooks: Mapping[str, Hook]) -> list[tuple[str, Hook]]:
    """Hooks by priority, then by place in the mapping."""
    return sorted(hooks.items(), key=lambda item: item[1].priority)


class Plan:
    """The call list of each event on one rank, resolved once at start, with the cost of each call.

    Runs in the worker; the driver makes one too, to print it. Raises nothing by itself: a failing hook raises
    HookError out of `fire`, except in `on_exception` and for best-effort hooks, whose failures are logged.

    A call costs the host's time. With `mark`, which gives a moment of a device's time line, a call that is dear to the
    host costs what lies between two of these: one that waits for work given before is charged none of it, and one that
    gives the device work is charged that.
    """

    def __init__(
        self, hooks: Mapping[str, Hook], rank: int = 0, local_rank: int = 0, mark: Callable[[], Any] | None = None
    ) -> None:
        self.rank, self._mark = rank, mark
        self.hooks: dict[str, Hook] = {}
        self.calls: dict[str, tuple[Call, ...]] = {}
        for name, hook in in_order(hooks):
            hook.name = name
            if runs_on(hook, rank, local_rank):
                self.hooks[name] = hook
        for event in EVENTS:
            self.calls[event] = tuple(
                Call(name, event, getattr(hook, event), hook.best_effort, hook.pace(event), hook.priority)
                for name, hook in self.hooks.items()
                if hook.handles(event)
            )
        self._resolve_paces()

    def _resolve_paces(self) -> None:
        self._paces = {
            event: tuple({call.pace for call in calls if call.pace is not None}) for event, calls in self.calls.items()
        }
        self._unpaced = {
            event: tuple(call for call in calls if call.pace is None) for event, calls in self.calls.items()
        }
        self._due: dict[tuple[str, tuple[Interval | int, ...]], tuple[Call, ...]] = {}

    def with_calls(self, calls: Mapping[str, Iterable[Call]]) -> Plan:
        """The same hooks with other calls of some events, in the order of their hooks' priorities."""
        other = copy(self)
        other.calls = {
            **self.calls,
            **{event: tuple(sorted(some, key=lambda call: call.priority)) for event, some in calls.items()},
        }
        other._resolve_paces()
        return other

    def change(self, name: str, field: str, value: Any) -> None:
        """Gives a field of a hook another value between two iterations; a pace it holds counts from then on. Does
        nothing on a rank that does not run the hook."""
        hook = self.hooks.get(name)
        if hook is None:
            return
        setattr(hook, field, value)
        for call in (call for calls in self.calls.values() for call in calls if call.name == name):
            call.pace = hook.pace(call.event)
        self._resolve_paces()

    def fire(self, event: str, *arguments: Any) -> None:
        """Calls the hooks of an event in order, without those whose pace leaves it out, and adds what each cost to the
        ledger."""
        calls = self._calls_due(event, arguments[0]) if self._paces[event] else self.calls[event]
        if not calls:
            return
        if self._mark:
            self._fire_marked(calls, arguments, self._mark)
            return
        last = perf_counter()
        for call in calls:
            try:
                call.run(*arguments)
            except (Exception, SystemExit, GeneratorExit) as error:
                self._failed(call, error)
            now = perf_counter()
            call.made += 1
            call.host_s += now - last
            call.calls += 1
            call.seconds += now - last
            last = now

    def _fire_marked(self, calls: Iterable[Call], arguments: tuple[Any, ...], mark: Callable[[], Any]) -> None:
        """Marks only calls that are dear in the mean: two marks take longer than most hooks."""
        for call in calls:
            begun = mark() if call.host_s > DEAR_S * call.made else None
            started = perf_counter()
            try:
                call.run(*arguments)
            except (Exception, SystemExit, GeneratorExit) as error:
                self._failed(call, error)
            took = perf_counter() - started
            call.made += 1
            call.host_s += took
            call.calls += 1
            call.seconds += took if begun is None else mark() - begun

    def _calls_due(self, event: str, state: State) -> tuple[Call, ...]:
        """Asks once for each pace, not for each hook, so that many idle hooks cost what one does."""
        counted = event == "on_step"
        due: tuple[Interval | int, ...] = ()
        for pace in self._paces[event]:
            if under_way(pace, state, counted=counted):
                due += (pace,)
        if not due:
            return self._unpaced[event]
        calls = self._due.get((event, due))
        if calls is None:
            calls = self._due[event, due] = tuple(
                call for call in self.calls[event] if call.pace is None or call.pace in due
            )
        return calls

    def _failed(self, call: Call, error: BaseException) -> None:
        if not call.best_effort and call.event != "on_exception":
            raise HookError(call.name, call.event, self.rank, named_text(error)) from error
        logger.warning("hook '%s' failed in %s (the run goes on): %s", call.name, call.event, named_text(error))

    def leave_device(self) -> None:
        """Measures by the host's clock from now on, and of what was measured on a device keeps what it has told; does
        not wait for it."""
        self._mark = None
        for call in (call for calls in self.calls.values() for call in calls):
            call.seconds = call.seconds if isinstance(call.seconds, float) else call.seconds.passed()

    def drain_costs(self) -> list[dict[str, Any]]:
        """What each hook cost at each event since the last drain: rows of hook, event, calls, seconds."""
        rows = []
        for call in (call for calls in self.calls.values() for call in calls if call.calls):
            rows.append({"hook": call.name, "event": call.event, "calls": call.calls, "seconds": float(call.seconds)})
            call.calls, call.seconds = 0, 0.0
        return rows

    def collective_signature(self) -> list[str]:
        """Names and order of the collective hooks, which must be the same on all ranks."""
        return [f"{name}:{type(hook).__name__}" for name, hook in self.hooks.items() if hook.collective]

    def table(self) -> dict[str, list[str]]:
        """Event to hook names in order, for printing; events without hooks are left out."""
        return {
            event: names
            for event, calls in self.calls.items()
            if (names := [call.name for call in calls if call.name in self.hooks])
        }


def priority_label(value: int) -> str:
    """`NORMAL (50)`, or the number alone where no level has it."""
    return f"{Priority(value).name} ({value})" if value in set(Priority) else str(value)
