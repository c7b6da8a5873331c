"""When a run saves checkpoints, and how long its training waits for them. Runs in workers."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

from hooks.state import State
from orchestrator.loop.saving.saver import Saver
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.stopping import StopDecision
from orchestrator.loop.world import World


class RunCheckpoints:
    """The checkpoints that a run saves: those that its hooks request, and one where it stops.

    `saves_end` tells whether a hook saves the end of training. Contents are collected within a
    context of `preparing`. A collective method must be called on every rank.
    """

    def __init__(
        self,
        saver: Saver,
        state: State,
        world: World,
        clock: SpanClock,
        *,
        saves_end: bool,
        preparing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.saves_end = saves_end
        self._preparing = preparing
        self._saver = saver
        self._state = state
        self._world = world
        self._clock = clock

    def save(self) -> str | None:
        """Write a checkpoint between two reports and return its name; collective."""
        self.start()
        self._saver.finish()
        return self._saver.last_name

    def save_if_requested(self) -> None:
        """Save a checkpoint if a hook has requested one; collective."""
        if self._state.checkpoint_reasons:
            self._save_if_possible()

    def save_unless_saved(self) -> None:
        """Save a checkpoint of this position, unless the newest one is of it; collective."""
        if self._saver.last_position != self._state.position:
            self._save_if_possible()

    def save_stop(self, decision: StopDecision) -> None:
        """Save a checkpoint where the run stops: of an interruption always, otherwise if a hook
        saves the end of training. Collective."""
        if decision.is_interruption or (decision and self.saves_end):
            self.save_unless_saved()

    def _save_if_possible(self) -> None:
        self._state.checkpoint_reasons.clear()
        if self.can_save():
            self.start()

    def can_save(self) -> bool:
        """Return whether a checkpoint has contents to hold."""
        return True

    def start(self) -> None:
        """Save a checkpoint, or start saving it in the background; collective."""
        with self._preparing():
            start = perf_counter()
            self._saver.save(self._state.milestone)
            self._clock.checkpoint_s += perf_counter() - start

    def finish_if_written(self) -> None:
        """Commit a checkpoint whose background write has finished; collective."""
        start = perf_counter()
        if self._saver.finish_if_written():
            self._clock.checkpoint_s += perf_counter() - start
        elif self._world.world_size > 1:
            self._clock.waiting_s += perf_counter() - start
