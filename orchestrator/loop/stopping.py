"""Stopping: all ranks end a run at the same iteration."""

from collections import deque
from collections.abc import Callable
from time import perf_counter

from hooks.state import State
from orchestrator.loop.span_clock import Clock
from orchestrator.loop.world import World

CHECK_EVERY_S = 0.25
"""Seconds between two checks for stop requests."""
INTERRUPTED = "interrupted"
"""Stop reason of a run that was interrupted, for example by Ctrl-C."""
_SHARE = 0.005
"""Maximum share of the time that checks may take; with thousands of ranks they become less
frequent."""


class StopCoordinator:
    """Coordinator of early stops, which a hook or the user requests on any rank. Runs in a worker.

    A collective in every step could cost more than the step, so ranks check only every few
    iterations. In each check they agree on the next one. The cost of a check is the wait of the
    last rank, as the minimum over the last few checks. This rank's wait is added to the clock's.
    With one rank, a check is free.
    """

    def __init__(
        self, state: State, world: World, clock: Clock, is_interrupted: Callable[[], bool]
    ) -> None:
        self._state, self._world, self._clock = state, world, clock
        self._is_interrupted = is_interrupted
        self.next_check = 0
        """The iteration of the next check, the same on all ranks."""
        self.reasons: tuple[str, ...] = ()
        """Stop reasons on which all ranks have agreed; empty while the run continues."""
        self._waited_s = 0.0
        self._costs_s: deque[float] = deque(maxlen=3)
        self.interrupted = False
        """True if the run ends early, but can be resumed."""

    def is_stop_requested(self) -> bool:
        """Return whether a stop is requested on any rank; collective, so call it only from
        `next_check` on."""
        state = self._state
        is_requested = bool(state.stop_reasons or state.pause_reasons) or self._is_interrupted()
        if self._world.world_size == 1:
            return is_requested
        start = perf_counter()
        flag, iteration_s, waited_s = self._world.maximum(
            [float(is_requested), self._clock.iteration_s, -self._waited_s]
        )
        self._waited_s = perf_counter() - start
        self._clock.waiting_s += self._waited_s
        self._costs_s.append(-waited_s)
        iteration_s = max(iteration_s, 1e-6)
        by_time, by_cost = (
            min(1000.0, CHECK_EVERY_S / iteration_s),
            min(self._costs_s) / _SHARE / iteration_s,
        )
        self.next_check = state.iteration + max(1, int(max(by_time, by_cost)))
        return flag > 0

    def agree(self) -> None:
        """Collect the stop reasons of all ranks; a stop outranks an interruption. Collective."""
        own = (
            self._state.stop_reasons,
            self._state.pause_reasons + [INTERRUPTED] * self._is_interrupted(),
        )
        stops, pauses = zip(*self._world.gather(own), strict=True)
        self._state.stop_reasons[:] = dict.fromkeys(
            reason for reasons in stops for reason in reasons
        )
        self.interrupted = any(pauses) and not self._state.stop_reasons
        self.reasons = tuple(
            dict.fromkeys(reason for reasons in (*stops, *pauses) for reason in reasons)
        )
