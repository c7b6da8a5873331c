"""The remaining time of training."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

from hooks.metrics.names import kind_of
from hooks.parts.logs.readings import read
from hooks.recent_rows import RECENT, Recent
from hooks.state import State

_WARM_UP = 3
"""First iterations of a process, which are left out."""
_NEWEST = 10
"""Iterations to read each time; reading all would cost a small model more than its own work."""
_COLUMNS = frozenset({"phase", "epoch", "step_s"})
_SAMPLE = 100
"""Iterations for the median."""


@dataclass
class _Pause:
    """Mean duration of what interrupts training, and the mean number of iterations between two."""

    count: int = 0
    seconds: float = 0.0
    trained_between: float = 0.0
    began: float = 0.0

    def end(self, trained: int) -> None:
        self.count += 1
        self.seconds += (perf_counter() - self.began - self.seconds) / self.count
        self.trained_between = trained / self.count

    def remaining_s(self, iterations: int) -> float:
        """Return the seconds of the pauses in the next iterations."""
        return math.ceil(iterations / self.trained_between) * self.seconds if self.trained_between else 0.0


class Remaining:
    """Estimate of the remaining time: the remaining iterations at their median time, and validations and checkpoints
    at their mean time.

    Its owner passes the events on. Source: MMEngine IterTimerHook, VISSL LogLossLrEtaHook, iMIX.
    """

    def __init__(self) -> None:
        self._validation, self._checkpoint = _Pause(), _Pause()
        self._saving_at: int | None = None
        self._sample: deque[float] = deque(maxlen=_SAMPLE)

    def on_phase_start(self) -> None:
        self._validation.began, self._saving_at = perf_counter(), None

    def on_phase_end(self, state: State) -> None:
        if kind_of(state.phase) == "val" and state.iteration:
            self._validation.end(state.iteration)

    def on_save(self, state: State) -> None:
        self._checkpoint.began, self._saving_at = perf_counter(), state.iteration

    def on_saved(self, state: State) -> None:
        if state.iteration and state.iteration == self._saving_at:  # else it was written in the background
            self._checkpoint.end(state.iteration)

    def seconds(self, state: State) -> float | None:
        """Return the seconds to the end of training; None if it has no end, or no iteration was measured yet."""
        self._sample.extend(_newest(state.recent))
        iterations = iterations_to_come(state)
        if iterations is None or not self._sample:
            return None
        pauses = (self._validation, self._checkpoint)
        return iterations * median(self._sample) + sum(pause.remaining_s(iterations) for pause in pauses)

    def state_dict(self) -> dict[str, Any]:
        return {"validation": asdict(self._validation), "checkpoint": asdict(self._checkpoint)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._validation, self._checkpoint = _Pause(**state["validation"]), _Pause(**state["checkpoint"])


def iterations_to_come(state: State) -> int | None:
    """Return the remaining training iterations; None if the run has no end, or the length of an epoch is unknown.

    In a custom loop, an epoch is assumed to be as long as those before.
    """
    if state.max_steps is not None:
        return max(0, state.max_steps - state.step) * state.accumulate
    length = state.phase_length or (state.iterations_before // state.epoch if state.epoch else None)
    if state.max_epochs is None or length is None:
        return None
    return max(0, (state.max_epochs - state.epoch) * length - state.phase_iteration)


def _newest(recent: Recent) -> list[float]:
    """Return the seconds of the newest training iterations that are measured, without the first of each phase, which
    waits for the loader to start."""
    warm = len(recent) - _WARM_UP if len(recent) < RECENT else _NEWEST
    if warm < 1:
        return []
    columns = recent.columns(min(warm, _NEWEST) + 1, names=_COLUMNS)
    phases = list(zip(columns["phase"], columns["epoch"], strict=True))
    seconds = read(columns.get("step_s", [])[1:])
    return [
        value
        for value, phase, before in zip(seconds, phases[1:], phases, strict=False)
        if value is not None and phase == before and phase[0] == "train"
    ]
