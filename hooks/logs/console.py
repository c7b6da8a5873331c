"""Lines for people: how training goes, and when it will be done."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean, median
from time import perf_counter
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from hooks.hook import Hook, Priority, Ranks
from hooks.logs.readings import readings
from hooks.state import State

logger = logging.getLogger("hookyard")

_WARM_UP = 3
"""Iterations of a run that say nothing about the rest of it."""
_RECENT = 100
"""Iterations whose median the remaining time is reckoned with."""


@dataclass
class Console(Hook):
    """Prints a line every so many iterations, and one with the metrics at the end of each phase.

    Runs on the master. A line has the phase, the epoch (0-based), the iteration in it, the learning rate, the mean
    loss and the mean time of the last `window` iterations (`data` is the wait for the batch, where perf_stats is
    on), the remaining time and, where it was recorded, the memory. It goes to `state.display`, or to the logger
    `hookyard` where there is none. Tensors are read only when a line is printed.
    Source: MMEngine LoggerHook and LogProcessor, VISSL LogLossLrEtaHook.
    """

    interval: Annotated[int, Ge(1)] = 50
    """Iterations between two lines; a phase longer than this also has one at its end."""
    window: Annotated[int, Ge(1)] = 10
    """Iterations over which loss and times are averaged."""
    columns: tuple[str, ...] = ("grad_norm",)
    """Further columns of the row to print, where they were recorded."""

    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        self._losses: deque[float | Tensor] = deque(maxlen=self.window)
        self._seconds: deque[float] = deque(maxlen=self.window)
        self._waits: deque[float] = deque(maxlen=self.window)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._trained = 0
        self._validations = 0
        self._validation_s = 0.0
        self._trained_between = 0.0
        self._phase_began = self._last = 0.0

    def on_phase_start(self, state: State) -> None:
        for values in (self._losses, self._seconds, self._waits):
            values.clear()
        self._phase_began = self._last = perf_counter()

    def on_step(self, state: State) -> None:
        now = perf_counter()
        self._measure(state, now - self._last)
        self._last = now
        self._losses.append(state.row["loss"])
        if state.clock is not None:
            self._waits.append(state.clock.data_wait_s)
        done = state.phase_iteration
        if done % self.interval == 0 or (done == state.phase_length > self.interval):
            self._print(state, self._line(state))

    def on_phase_end(self, state: State) -> None:
        seconds = perf_counter() - self._phase_began
        if state.phase == "val" and self._trained:
            self._validations += 1
            self._validation_s += (seconds - self._validation_s) / self._validations
            self._trained_between = self._trained / self._validations
        prefix = f"{state.phase}/"
        metrics = {key.removeprefix(prefix): value for key, value in state.metrics.items() if key.startswith(prefix)}
        self._print(state, "  ".join([f"{state.phase} done  epoch {_epoch(state)}", *_pairs(metrics), f"in {seconds:.1f} s"]))

    def _measure(self, state: State, seconds: float) -> None:
        first = not self._seconds
        self._seconds.append(seconds)
        if state.phase != "train":
            return
        self._trained += 1
        # The first iteration of a phase also waits for the loader's processes to start.
        if self._trained > _WARM_UP and not first:
            self._recent.append(seconds)

    def _line(self, state: State) -> str:
        values = readings(state, self._losses)
        names = ("lr", "loss", *self.columns) if state.phase == "train" else ("loss",)
        parts = [f"{state.phase}  epoch {_epoch(state)}  {state.phase_iteration}/{state.phase_length}"]
        parts += _pairs({name: values[name] for name in names if name in values})
        parts.append(f"{_milliseconds(self._seconds)} ms (data {_milliseconds(self._waits)} ms)")
        if (eta := self._eta(state)) is not None:
            parts.append(f"eta {timedelta(seconds=round(eta))}")
        memory = values.get("cuda_peak_allocated_bytes", values.get("rss_bytes"))
        if memory is not None:
            parts.append(f"memory {memory / 2**20:.0f} MiB")
        return "  ".join(parts)

    def _eta(self, state: State) -> float | None:
        """Seconds to the end of training: what remains at the median iteration, and the validations on the way."""
        remaining = _remaining(state)
        if state.phase != "train" or remaining is None or not self._recent:
            return None
        validations = math.ceil(remaining / self._trained_between) if self._validations else 0
        return remaining * median(self._recent) + validations * self._validation_s

    def _print(self, state: State, line: str) -> None:
        if state.display is None:
            logger.info("%s", line)
        else:
            state.display.line(line)


def _remaining(state: State) -> int | None:
    """Training iterations to come; None where the run has no end."""
    if state.max_steps is not None:
        return max(0, state.max_steps - state.step) * state.accumulate
    if state.max_epochs is None:
        return None
    return (state.max_epochs - state.epoch) * state.phase_length - state.phase_iteration


def _epoch(state: State) -> int:
    """The epoch under way, or the last one after its end."""
    return state.epoch - state.epoch_completed


def _pairs(values: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4g}" for name, value in values.items()]


def _milliseconds(seconds: deque[float]) -> str:
    return f"{1000 * fmean(seconds):.1f}" if seconds else "-"
