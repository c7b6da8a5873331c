"""Lines for people: how training goes, and when it will be done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import Any, ClassVar

from hooks.hook import Hook, Priority, Ranks
from hooks.interval import Interval, paced_by
from hooks.parts.logs.eta import Remaining
from hooks.parts.logs.readings import learning_rates, phase_metrics, under_way
from hooks.parts.logs.window_statistics import LookBack, Size, Statistic, Windows
from hooks.state import State

_RATE = re.compile(r"lr(_\d+)?")
_SHOWN = ("loss", "lr", "lr_1", "lr_2", "lr_3", "step_s", "data_wait_s", "rss_bytes", "cuda_peak_allocated_bytes")
"""Columns a line may show by itself."""
_MOST_RATES = 4
"""Learning rates that are listed; more are a range."""


@dataclass
class Console(Hook):
    """Prints a line every so many iterations, and one with the metrics at the end of each phase.

    Runs on the master. A line has the phase, the epoch (0-based), the iteration in it, the learning rate (each there
    is, where parameter groups differ), the mean loss and the mean time of the last `window` iterations (`data` is the
    wait for the batch, where perf_stats is on), the remaining time and, where it was recorded, the memory. It goes to
    `state.display`, or to the logger `hookyard` where there is none. Between two lines it is not called; what it shows
    is looked up then, in one reading of tensors. Source: MMEngine LoggerHook and LogProcessor, VISSL LogLossLrEtaHook,
    ClassyVision LossLrMeterLoggingHook.
    """

    every: LookBack = Interval(50, "iterations")
    """Iterations between two lines; a phase longer than this also has one at its end."""
    window: Size = 10
    """Iterations over which loss, times and the gradient norm are averaged: a number, `line` (since the last line),
    `epoch` or `global`."""
    columns: tuple[str, ...] = ("grad_norm",)
    """Further columns or statistics to print, where they were recorded."""
    statistics: dict[str, Statistic] = field(default_factory=dict)
    """Statistics of columns by a name of their own, such as `slowest: {column: step_s, method: max, window: epoch}`;
    all are printed. One with a column's name stands in for it."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.BELOW_NORMAL
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        columns = {*_SHOWN, *self.columns, *(statistic.column for statistic in self.statistics.values())}
        self._windows = Windows(self.window, self.statistics, columns)
        self._remaining = Remaining()
        self._memory: float | None = None
        self._phase_began = 0.0

    def on_phase_start(self, state: State) -> None:
        self._windows.start_phase(state)
        self._remaining.phase_began(state)
        self._phase_began = perf_counter()

    @paced_by("every")
    def on_step(self, state: State) -> None:
        self._show(state, state.phase_iteration, under_way(state))

    def on_phase_end(self, state: State) -> None:
        self._remaining.phase_ended(state)
        if state.phase_length > self.every.count and self._windows.unwritten():
            # The counter of training begins again where the phase completed the epoch.
            whole = state.phase == "train" and state.epoch_completed
            self._show(state, state.phase_length if whole else state.phase_iteration, {})
        self._windows.catch_up()
        metrics = [
            f"{name.removeprefix(f'{state.phase}/')} {value:.4g}" for name, value in phase_metrics(state).items()
        ]
        seconds = perf_counter() - self._phase_began
        state.show("  ".join([f"{state.phase} done  epoch {_epoch(state)}", *metrics, f"in {seconds:.1f} s"]))

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._remaining.saving(state)

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
        self._memory = values.get("cuda_peak_allocated_bytes", values.get("rss_bytes", self._memory))
        parts = [
            f"{state.phase}  epoch {_epoch(state)}  {iteration}{f'/{state.phase_length}' if state.phase_length else ''}"
        ]
        if state.phase == "train":
            parts += self._of_training(state, values)
        parts += [f"{name} {values[name]:.4g}" for name in ("loss", *self.columns, *self.statistics) if name in values]
        if "step_s" in values:
            waiting = f" (data {1000 * values['data_wait_s']:.1f} ms)" if "data_wait_s" in values else ""
            parts.append(f"{1000 * values['step_s']:.1f} ms{waiting}")
        remaining = self._remaining.seconds(state) if state.phase == "train" else None
        if remaining is not None:
            parts.append(f"eta {timedelta(seconds=round(remaining))}")
        if self._memory is not None:
            parts.append(f"memory {self._memory / 2**20:.0f} MiB")
        state.show("  ".join(parts))

    def _of_training(self, state: State, values: Mapping[str, float]) -> list[str]:
        """The step, where the run's length is in steps, and the learning rates that differ; many are a range."""
        step = [] if state.max_steps is None else [f"step {state.step}/{state.max_steps}"]
        known = {**learning_rates(state), **values}
        rates = list(dict.fromkeys(rate for name, rate in known.items() if _RATE.fullmatch(name)))
        if not rates:
            return step
        if len(rates) > _MOST_RATES:
            return [*step, f"lr {min(rates):.4g} to {max(rates):.4g}"]
        return [*step, f"lr {', '.join(f'{rate:.4g}' for rate in rates)}"]


def _epoch(state: State) -> int:
    """The epoch under way, or the last one after its end."""
    return state.epoch - state.epoch_completed
