"""Progress bars."""

from dataclasses import dataclass
from typing import ClassVar

from hooks.hook import Hook, Priority, Ranks
from hooks.interval import Interval, Iterations, at_interval
from hooks.setup import Setup
from hooks.state import State


@dataclass
class ProgressBar(Hook):
    """Show progress bars on the terminal for train, val and test.

    Runs on the master; no effect without `state.display`. Reads no tensors, so it never
    synchronizes. Source: ClassyVision ProgressBarHook.
    """

    every: Iterations = Interval(10, "iterations")
    """Iterations between updates of the bar."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        self._open = False

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(custom_loop="the length of a phase is not known there before it ends")

    def on_phase_start(self, state: State) -> None:
        self._move(state, state.phase_iteration)

    @at_interval("every")
    def on_step(self, state: State) -> None:
        self._move(state, state.phase_iteration)

    def on_phase_end(self, state: State) -> None:
        self._finish(state)

    def on_end(self, state: State) -> None:
        self._finish(state)

    def on_exception(self, state: State, error: BaseException) -> None:
        self._finish(state)

    def _move(self, state: State, completed: int) -> None:
        if state.display is None or not state.phase_length:
            return
        state.display.progress(
            state.phase,
            completed,
            state.phase_length,
            f"epoch {state.epoch_number}",
        )
        self._open = completed < state.phase_length

    def _finish(self, state: State) -> None:
        # Fill the bar of a phase that ended early, because a bar disappears only when it is full.
        if self._open:
            self._move(state, state.phase_length)
