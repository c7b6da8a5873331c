"""Throughput of each phase, and the clock's spans in each row."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

from hooks.hook import Hook, Priority
from hooks.interval import paced_by
from hooks.recent_rows import RECENT
from hooks.state import State


@dataclass
class _Total:
    """What one phase has done since the last report."""

    seconds: float = 0.0
    samples: int = 0
    iterations: int = 0


@dataclass
class PerfStats(Hook):
    """Measures where each iteration's time goes, and how many samples a second each phase handles.

    Every rank measures itself; no communication. Switches on the loop's clock, which puts its spans (`data_wait_s`,
    `forward_s`, `step_s` and the others) into each row, and adds `<phase>/samples_per_s` and `<phase>/iteration_s` to
    each report. Both come from the phase's own wall time and the samples that were really in its batches, so they
    hold under gradient accumulation and changing batch sizes, and validation never counts as training. Samples are
    counted at the end of a phase: an iteration pays nothing for it.
    Source: VISSL LogPerfTimeMetricsHook, MMEngine IterTimerHook.
    """

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    reach: ClassVar[int] = RECENT
    """Iterations of val and test after which the recent rows are counted, before they are forgotten."""

    def __post_init__(self) -> None:
        self._began = 0.0
        self._before = (0, 0)
        self._counted, self._looked = 0, 0
        self._totals: dict[str, _Total] = {}

    def on_start(self, state: State) -> None:
        if state.clock is not None:
            state.clock.recording = True

    def on_phase_start(self, state: State) -> None:
        self._before = (state.samples, state.iteration)
        self._counted, self._looked = 0, 0
        self._began = perf_counter()

    @paced_by("reach")
    def on_step(self, state: State) -> None:
        if state.phase != "train":
            self._counted += state.batch_size + _samples(state, state.phase_iteration - self._looked - 1)
            self._looked = state.phase_iteration

    def on_phase_end(self, state: State) -> None:
        total = self._totals.setdefault(state.phase, _Total())
        total.seconds += perf_counter() - self._began
        samples, iterations = self._done(state)
        total.samples += samples
        total.iterations += iterations

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        for phase, total in self._totals.items():
            if total.iterations and total.seconds > 0:
                metrics[f"{phase}/samples_per_s"] = total.samples / total.seconds
                metrics[f"{phase}/iteration_s"] = total.seconds / total.iterations
        self._totals.clear()

    def _done(self, state: State) -> tuple[int, int]:
        """Samples and iterations of the phase that ends: training has counters, evaluation only its rows."""
        if state.phase == "train":
            return state.samples - self._before[0], state.iteration - self._before[1]
        return self._counted + _samples(state, state.phase_iteration - self._looked), state.phase_iteration


def _samples(state: State, rows: int) -> int:
    """Samples in the last so many rows."""
    return sum(state.recent.columns(rows, names=("batch_size",)).get("batch_size", ()))
