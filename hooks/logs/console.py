"""Lines for people: how training goes, and when it will be done."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from hooks.hook import Hook, Priority, Ranks
from hooks.parts.logs.console_lines import FORMATS, Moment, iterations_done
from hooks.parts.logs.eta import Remaining
from hooks.parts.logs.readings import learning_rates
from hooks.parts.logs.window_statistics import Size, Statistic, Windows
from hooks.recent_rows import RECENT
from hooks.rhythm import paced_by
from hooks.state import State

logger = logging.getLogger("hookyard")

_RATE = re.compile(r"lr(_\d+)?")
_SHOWN = ("loss", "lr", "lr_1", "lr_2", "lr_3", "step_s", "data_wait_s", "rss_bytes", "cuda_peak_allocated_bytes")
"""Columns a line may show by itself."""


@dataclass
class Console(Hook):
    """Prints a line every so many iterations, and one with the metrics at the end of each phase.

    Runs on the master. A line has the phase, the epoch (0-based), the iteration in it, the learning rate (each there is,
    where parameter groups differ), the mean loss and the mean time of the last `window` iterations (`data` is the wait
    for the batch, where perf_stats is on), the remaining time and, where it was recorded, the memory. It goes to
    `state.display`, or to the logger `hookyard` where there is none. Between two lines it is not called; what it shows
    is looked up then, in one reading of tensors.
    Source: MMEngine LoggerHook and LogProcessor, VISSL LogLossLrEtaHook, ClassyVision LossLrMeterLoggingHook.
    """

    interval: Annotated[int, Ge(1), Le(RECENT)] = 50
    """Iterations between two lines; a phase longer than this also has one at its end."""
    window: Size = 10
    """Iterations over which loss, times and the gradient norm are averaged: a number, `line` (since the last line),
    `epoch` or `global`."""
    columns: tuple[str, ...] = ("grad_norm",)
    """Further columns or statistics to print, where they were recorded."""
    statistics: dict[str, Statistic] = field(default_factory=dict)
    """Statistics of columns by a name of their own, such as `slowest: {column: step_s, method: max, window: epoch}`; all
    are printed. One with a column's name stands in for it."""

    format: Literal["hookyard", "mmengine", "vissl", "classy", "imix"] = "hookyard"
    """Whose way of wording lines: as MMEngine's LogProcessor, VISSL's LogLossLrEtaHook, ClassyVision's
    LossLrMeterLoggingHook or iMIX's CommonMetricLoggerHook print them, for what reads their logs."""

    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        columns = {*_SHOWN, *self.columns, *(statistic.column for statistic in self.statistics.values())}
        self._windows = Windows(self.window, self.statistics, columns)
        self._remaining = Remaining()
        self._wording = FORMATS[self.format]
        self._rates: Mapping[str, float] = {}
        self._memory: float | None = None
        self._first = True
        self._phase_began = 0.0

    def on_phase_start(self, state: State) -> None:
        self._windows.begin(state)
        self._remaining.phase_began(state)
        self._phase_began = perf_counter()

    @paced_by("interval")
    def on_step(self, state: State) -> None:
        self._show(state, state.phase_iteration, state.row)

    def on_phase_end(self, state: State) -> None:
        self._remaining.phase_ended(state)
        done = iterations_done(state)
        if self._wording.wants_rest(state, self.interval) and self._windows.unwritten():
            self._show(state, done, {})
        self._windows.catch_up()
        prefix = f"{state.phase}/"
        metrics = {key.removeprefix(prefix): value for key, value in state.metrics.items() if key.startswith(prefix)}
        rates = self._rates if state.phase == "train" else {}
        seconds = perf_counter() - self._phase_began
        for line in self._wording.end(Moment(state, done, rates, {}, {}, metrics=metrics, seconds=seconds)):
            self._print(state, line)

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._remaining.saving()

    def on_saved(self, state: State, path: str) -> None:
        self._remaining.saved(state)

    def state_dict(self) -> dict[str, Any]:
        return {"windows": self._windows.state_dict(), "remaining": self._remaining.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._windows.load_state_dict(state["windows"])
        self._remaining.load_state_dict(state["remaining"])

    def _show(self, state: State, iteration: int, row: Mapping[str, Any]) -> None:
        """Prints how things are, with the columns that the row under way has so far."""
        values = self._windows.look(row)
        training = state.phase == "train"
        if not training and not self._wording.evaluation:
            return
        if training:
            self._rates = {name: value for name, value in {**learning_rates(state), **values}.items() if _RATE.fullmatch(name)}
        self._memory = values.get("cuda_peak_allocated_bytes", values.get("rss_bytes", self._memory))
        moment = Moment(
            state,
            iteration,
            rates=self._rates if training else {},
            values={name: values[name] for name in ("loss", *self.columns, *self.statistics) if name in values},
            times={name: values[name] for name in ("step_s", "data_wait_s") if name in values},
            memory=self._memory,
            eta=self._remaining.seconds(state) if training else None,
            first=self._first,
        )
        self._first = False
        self._print(state, self._wording.within(moment))

    def _print(self, state: State, line: str) -> None:
        if state.display is None:
            logger.info("%s", line)
        else:
            state.display.line(line)
