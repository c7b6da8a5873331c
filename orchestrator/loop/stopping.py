"""Stopping: how all ranks end a run at the same place when one of them is asked to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from hooks.state import State
from orchestrator.loop.clock.span_clock import Clock
from orchestrator.loop.world import World

CHECK_EVERY_S = 0.25
"""Ranks ask each other about this often whether one of them wants to stop."""
_SHARE = 0.005
"""The part of the time that asking may take: where it takes long, as among thousands of ranks, they ask less often."""


class Stopping:
    """Whether the run ends before its time, and why: what hooks asked for and what was asked from outside. Worker
    process.

    A collective in every step would cost more than a small step itself, so ranks ask each other every few iterations:
    as many as take about `CHECK_EVERY_S`, or longer where asking takes more than a small part of that; a number they
    agree on when they ask. What asking takes is what the last rank to come waits, of the last few times the least. With
    one rank it costs nothing. What a rank waits for the answer is told to the clock.
    """

    def __init__(self, state: State, world: World, clock: Clock, asked_from_outside: Callable[[], bool]) -> None:
        self._state, self._world, self._clock = state, world, clock
        self._asked_from_outside = asked_from_outside
        self.next_check = 0
        """The iteration from which `asked` has to be called again, the same on all ranks."""
        self.reasons: tuple[str, ...] = ()
        """Why the run ends, agreed over ranks; empty while it goes on."""
        self._waited_s = 0.0
        self._costs_s: deque[float] = deque(maxlen=3)
        self.interrupted = False
        """Whether it ends before it is done, and can be resumed."""

    def asked(self) -> bool:
        """Whether any rank was asked to stop; collective, so call it at or after `next_check` alone."""
        state = self._state
        asked = bool(state.stop_reasons or state.pause_reasons) or self._asked_from_outside()
        if self._world.world_size == 1:
            return asked
        began = perf_counter()
        flag, slowest, least = self._world.maximum([float(asked), self._clock.iteration_s, -self._waited_s])
        self._waited_s = perf_counter() - began
        self._clock.waiting_s += self._waited_s
        self._costs_s.append(-least)
        slowest = max(slowest, 1e-6)
        often, seldom = min(1000.0, CHECK_EVERY_S / slowest), min(self._costs_s) / _SHARE / slowest
        self.next_check = state.iteration + max(1, int(max(often, seldom)))
        return flag > 0

    def agree(self) -> None:
        """Join the reasons of all ranks; collective."""
        mine = (
            self._state.stop_reasons,
            self._state.pause_reasons + ["interrupted"] * self._asked_from_outside(),
        )
        stops, pauses = zip(*self._world.gather(mine), strict=True)
        self.interrupted = any(pauses)
        self.reasons = tuple(dict.fromkeys(reason for reasons in (*stops, *pauses) for reason in reasons))
