"""When a run saves checkpoints, and how long its training waits for them. Runs in workers."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter

from hooks.state import State
from orchestrator.loop.saving.saver import Saver
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.stopping import StopDecision
from orchestrator.loop.world import World


@dataclass(eq=False, kw_only=True)
class RunCheckpoints:
    """The checkpoints that a run saves: those that its hooks request, and one where it stops.

    A collective method must be called on every rank.
    """

    saver: Saver
    state: State
    world: World
    clock: SpanClock
    saves_end: bool
    """Whether a hook saves the end of training."""
    preparing: Callable[[], AbstractContextManager[None]] = nullcontext
    """Function that returns a context, within which contents are collected."""

    # When a checkpoint is saved

    def save(self) -> str | None:
        """Write a checkpoint between two reports and return its name; collective."""
        self.start()
        self.finish()
        return self.saver.last_name

    def save_if_requested(self) -> None:
        """Save a checkpoint if a hook has requested one; collective."""
        if self.state.checkpoint_reasons:
            self._save_if_possible()

    def save_unless_saved(self) -> None:
        """Save a checkpoint of this position, unless the newest one is of it; collective."""
        if not self.is_saved:
            self._save_if_possible()

    @property
    def is_saved(self) -> bool:
        """True if the newest checkpoint is of this position."""
        return self.saver.last_position == self.state.position

    def save_stop(self, decision: StopDecision) -> None:
        """Save a checkpoint where the run stops: of an interruption always, otherwise if a hook
        saves the end of training. Collective."""
        if decision.is_interruption or (decision and self.saves_end):
            self.save_unless_saved()

    def _save_if_possible(self) -> None:
        self.state.checkpoint_reasons.clear()
        if self.can_save():
            self.start()

    def can_save(self) -> bool:
        """Return whether a checkpoint has contents to hold."""
        return True

    # Its background write

    def start(self) -> None:
        """Save a checkpoint, or start saving it in the background; collective."""
        with self.preparing():
            start = perf_counter()
            self.saver.save(self.state.milestone)
            self.clock.checkpoint_s += perf_counter() - start

    @property
    def in_background(self) -> bool:
        """True if training continues while a checkpoint is being written."""
        return self.saver.in_background

    def finish_if_written(self) -> None:
        """Commit a checkpoint whose background write has finished; collective."""
        start = perf_counter()
        if self.saver.finish_if_written():
            self.clock.checkpoint_s += perf_counter() - start
        elif self.world.world_size > 1:
            self.clock.waiting_s += perf_counter() - start

    def finish(self) -> None:
        """Wait until the checkpoint being written is committed; collective.

        Raises a rank's error on every rank.
        """
        self.saver.finish()

    # The end of the run

    def continue_from(self, name: str) -> None:
        """Take the checkpoint that was just restored as the newest one."""
        self.saver.continue_from(name)

    def finish_without_peers(self) -> None:
        """Finish although other ranks may be dead; abandon a checkpoint that they have not written
        in time."""
        self.saver.finish_without_peers()

    def abandon(self) -> None:
        """Finish after a failure, on this rank alone and without hooks."""
        self.saver.abandon()

    def close(self) -> None:
        """Wait until old checkpoints are deleted; raises the error of a failed deletion."""
        self.saver.close()
