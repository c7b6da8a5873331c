"""Lines for people: how training goes, and when it will be done."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le

from hooks.hook import Hook, Priority, Ranks
from hooks.logs.readings import learning_rates
from hooks.logs.remaining import Remaining
from hooks.logs.windows import Size, Statistic, Windows
from hooks.rhythm import paced_by
from hooks.state import RECENT, State

logger = logging.getLogger("hookyard")

_RATE = re.compile(r"lr_\d+")
_MOST_RATES = 4


@dataclass
class Console(Hook):
    """Prints a line every so many iterations, and one with the metrics at the end of each phase.

    Runs on the master. A line has the phase, the epoch (0-based), the iteration in it, the learning rate (each there is,
    where parameter groups differ), the mean loss and the mean time of the last `window` iterations (`data` is the wait
    for the batch, where perf_stats is on), the remaining time and, where it was recorded, the memory. It goes to
    `state.display`, or to the logger `hookyard` where there is none. Between two lines it is not called; what it shows
    is looked up then, in one reading of tensors.
    Source: MMEngine LoggerHook and LogProcessor, VISSL LogLossLrEtaHook.
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

    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        self._windows = Windows(self.window, self.statistics)
        self._remaining = Remaining()
        self._phase_began = 0.0

    def on_phase_start(self, state: State) -> None:
        self._windows.begin(state)
        self._remaining.phase_began(state)
        self._phase_began = perf_counter()

    @paced_by("interval")
    def on_step(self, state: State) -> None:
        self._print(state, self._line(state, state.phase_iteration, state.row))

    def on_phase_end(self, state: State) -> None:
        self._remaining.phase_ended(state)
        if state.phase_length > self.interval and self._windows.unwritten():
            self._print(state, self._line(state, _iterations_done(state), {}))
        seconds = perf_counter() - self._phase_began
        prefix = f"{state.phase}/"
        metrics = {key.removeprefix(prefix): value for key, value in state.metrics.items() if key.startswith(prefix)}
        self._print(state, "  ".join([f"{state.phase} done  epoch {_epoch(state)}", *_pairs(metrics), f"in {seconds:.1f} s"]))

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._remaining.saving()

    def on_saved(self, state: State, path: str) -> None:
        self._remaining.saved(state)

    def state_dict(self) -> dict[str, Any]:
        return {"windows": self._windows.state_dict(), "remaining": self._remaining.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._windows.load_state_dict(state["windows"])
        self._remaining.load_state_dict(state["remaining"])

    def _line(self, state: State, iteration: int, row: Mapping[str, Any]) -> str:
        values = {**learning_rates(state), **self._windows.look(row)}
        parts = [f"{state.phase}  epoch {_epoch(state)}  {iteration}/{state.phase_length}"]
        if state.phase == "train":
            parts += _rates(values)
        parts += _pairs({name: values[name] for name in ("loss", *self.columns, *self.statistics) if name in values})
        if "step_s" in values:
            waiting = f" (data {1000 * values['data_wait_s']:.1f} ms)" if "data_wait_s" in values else ""
            parts.append(f"{1000 * values['step_s']:.1f} ms{waiting}")
        eta = self._remaining.seconds(state) if state.phase == "train" else None
        if eta is not None:
            parts.append(f"eta {timedelta(seconds=round(eta))}")
        memory = values.get("cuda_peak_allocated_bytes", values.get("rss_bytes"))
        if memory is not None:
            parts.append(f"memory {memory / 2**20:.0f} MiB")
        return "  ".join(parts)

    def _print(self, state: State, line: str) -> None:
        if state.display is None:
            logger.info("%s", line)
        else:
            state.display.line(line)


def _epoch(state: State) -> int:
    """The epoch under way, or the last one after its end."""
    return state.epoch - state.epoch_completed


def _iterations_done(state: State) -> int:
    """Iterations of the phase that ends; of an epoch that is complete the counter begins again before that."""
    return state.phase_length if state.phase == "train" and state.epoch_completed else state.phase_iteration


def _rates(values: Mapping[str, float]) -> list[str]:
    """The learning rates that differ; many are a range."""
    rates = list(dict.fromkeys(value for name, value in values.items() if name == "lr" or _RATE.fullmatch(name)))
    if not rates:
        return []
    if len(rates) > _MOST_RATES:
        return [f"lr {min(rates):.4g} to {max(rates):.4g}"]
    return ["lr " + ", ".join(f"{rate:.4g}" for rate in rates)]


def _pairs(values: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4g}" for name, value in values.items()]
