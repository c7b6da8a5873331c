"""Progress bars on the driver's terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hooks.hook import Hook, Priority, Ranks, Setup
from hooks.interval import Interval, Iterations, paced_by
from hooks.state import State


@dataclass
class ProgressBar(Hook):
    """Shows how far each phase has come, one bar each for train, val and test.

    Runs on the master; draws nothing itself but tells `state.display`, and does nothing where there is none. It reads
    no tensors, so the device is never waited for. Source: ClassyVision ProgressBarHook (which shows train only).
    """

    every: Iterations = Interval(10, "iterations")
    """Iterations between two moves of the bar."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        self._open = False

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(custom_loop="the length of a phase is not known there before it ends")

    def on_phase_start(self, state: State) -> None:
        self._move(state, state.phase_iteration)

    @paced_by("every")
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
            state.phase, completed, state.phase_length, f"epoch {state.epoch - state.epoch_completed}"
        )
        self._open = completed < state.phase_length

    def _finish(self, state: State) -> None:
        # A phase may end early, and a bar is only gone once it is full.
        if self._open:
            self._move(state, state.phase_length)
