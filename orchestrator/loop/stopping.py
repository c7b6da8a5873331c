"""Stopping: all ranks end a run at the same iteration."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from time import perf_counter

from hooks.state import State
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.world import World

CHECK_EVERY_S = 0.25
"""Seconds between two checks for stop requests."""
INTERRUPTED = "interrupted"
"""Stop reason of a run that was interrupted, for example by Ctrl-C."""
_SHARE = 0.005
"""Maximum share of the time that checks may take; with thousands of ranks they become less
frequent."""


@dataclass(frozen=True)
class StopDecision:
    """The decision of all ranks whether a run ends here; false while it continues."""

    reasons: tuple[str, ...] = ()
    is_interruption: bool = False
    """True if the run ends early, but can be resumed."""

    def __bool__(self) -> bool:
        return bool(self.reasons)


def agree_to_stop(state: State, world: World, *, is_interrupted: bool) -> StopDecision:
    """Collect the stop reasons of all ranks; a stop outranks an interruption. Collective."""
    pause_reasons = [*state.pause_reasons]
    if is_interrupted:
        pause_reasons.append(INTERRUPTED)

    stops, pauses = zip(*world.gather((state.stop_reasons, pause_reasons)), strict=True)
    state.stop_reasons[:] = dict.fromkeys(chain.from_iterable(stops))
    reasons = dict.fromkeys(chain(*stops, *pauses))
    return StopDecision(tuple(reasons), is_interruption=any(pauses) and not state.stop_reasons)


class StopCoordinator:
    """Coordinator of early stops, which a hook or the user requests on any rank. Runs in a worker.

    A collective in every step could cost more than the step, so ranks check only every few
    iterations. In each check they agree on the next one. The cost of a check is the wait of the
    last rank, as the minimum over the last few checks. This rank's wait is added to the clock's.
    With one rank, a check is free.
    """

    def __init__(
        self, state: State, world: World, clock: SpanClock, is_interrupted: Callable[[], bool]
    ) -> None:
        self._state = state
        self._world = world
        self._clock = clock
        self._is_interrupted = is_interrupted
        self.next_check = 0
        """The iteration of the next check, the same on all ranks."""
        self._waited_s = 0.0
        self._costs_s: deque[float] = deque(maxlen=3)

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
        by_time = min(1000.0, CHECK_EVERY_S / iteration_s)
        by_cost = min(self._costs_s) / _SHARE / iteration_s
        self.next_check = state.iteration + max(1, int(max(by_time, by_cost)))
        return flag > 0

    def agree(self) -> StopDecision:
        """Return the decision of all ranks now; collective."""
        return agree_to_stop(self._state, self._world, is_interrupted=self._is_interrupted())
