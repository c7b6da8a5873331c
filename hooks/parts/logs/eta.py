"""How long training will still take."""

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
"""Iterations of a process that say nothing about the rest of the run."""
_NEWEST = 10
"""Iterations that are looked at each time; looking at all would cost a small model more than its own work."""
_LOOKED_AT = frozenset({"phase", "epoch", "step_s"})
_SAMPLE = 100
"""Iterations whose median the remaining time is reckoned with."""


@dataclass
class _Pause:
    """What interrupts training now and then: how long, on average, and after how many iterations."""

    count: int = 0
    seconds: float = 0.0
    trained_between: float = 0.0
    began: float = 0.0

    def over(self, trained: int) -> None:
        self.count += 1
        self.seconds += (perf_counter() - self.began - self.seconds) / self.count
        self.trained_between = trained / self.count

    def still_to_come(self, iterations: int) -> float:
        """The seconds of the pauses in so many iterations more."""
        return math.ceil(iterations / self.trained_between) * self.seconds if self.trained_between else 0.0


class Remaining:
    """Reckons the time to the end of training: the iterations to come at their median time, and the validations and
    checkpoints on the way at their mean. One slow iteration changes nothing; a slow start is left out.

    Its owner passes the events on. Source: MMEngine IterTimerHook, VISSL LogLossLrEtaHook (which take the mean of all
    iterations, tests among them), iMIX (a median, without validations).
    """

    def __init__(self) -> None:
        self._validation, self._checkpoint = _Pause(), _Pause()
        self._saving_at: int | None = None
        self._sample: deque[float] = deque(maxlen=_SAMPLE)

    def phase_began(self, state: State) -> None:
        self._validation.began, self._saving_at = perf_counter(), None

    def phase_ended(self, state: State) -> None:
        if kind_of(state.phase) == "val" and state.iteration:
            self._validation.over(state.iteration)

    def saving(self, state: State) -> None:
        self._checkpoint.began, self._saving_at = perf_counter(), state.iteration

    def saved(self, state: State) -> None:
        if state.iteration and state.iteration == self._saving_at:  # else it was written beside the training
            self._checkpoint.over(state.iteration)

    def seconds(self, state: State) -> float | None:
        """Seconds to the end of training; None where it has no end, and before there is anything to reckon with."""
        self._sample.extend(_newest(state.recent))
        iterations = iterations_to_come(state)
        if iterations is None or not self._sample:
            return None
        return (
            iterations * median(self._sample)
            + self._validation.still_to_come(iterations)
            + self._checkpoint.still_to_come(iterations)
        )

    def state_dict(self) -> dict[str, Any]:
        return {"validation": asdict(self._validation), "checkpoint": asdict(self._checkpoint)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._validation, self._checkpoint = _Pause(**state["validation"]), _Pause(**state["checkpoint"])


def iterations_to_come(state: State) -> int | None:
    """Training iterations to come; None where the run has no end, or it is not known how long an epoch is. Where a task
    trains by itself, it is taken to be as long as those before."""
    if state.max_steps is not None:
        return max(0, state.max_steps - state.step) * state.accumulate
    length = state.phase_length or (state.iterations_before // state.epoch if state.epoch else None)
    if state.max_epochs is None or length is None:
        return None
    return max(0, (state.max_epochs - state.epoch) * length - state.phase_iteration)


def _newest(recent: Recent) -> list[float]:
    """The seconds of the newest training iterations, of a GPU those it is through with. The first of a phase also waits
    for the loader's processes to start."""
    warm = len(recent) - _WARM_UP if len(recent) < RECENT else _NEWEST
    if warm < 1:
        return []
    columns = recent.columns(min(warm, _NEWEST) + 1, names=_LOOKED_AT)
    phases = list(zip(columns["phase"], columns["epoch"], strict=True))
    seconds = read(columns.get("step_s", [])[1:])
    return [
        value
        for value, phase, before in zip(seconds, phases[1:], phases, strict=False)
        if value is not None and phase == before and phase[0] == "train"
    ]
