"""Time of each iteration, and throughput of each phase."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

from hooks.hook import Hook, Priority
from hooks.interval import at_interval
from hooks.recent import RECENT
from hooks.state import State


@dataclass
class PerfStats(Hook):
    """Time spans of each iteration, and samples per second of each phase.

    Turns on the loop's clock, which puts its spans (`data_wait_s`, `forward_s`, `step_s` and
    others) into each row. A report has `<phase>/samples_per_s` and `<phase>/iteration_s`, from the
    wall time of the phase and the samples in its batches, so they hold with accumulation and
    changing batch sizes. After a resume they cover the rest of the phase. Each rank measures
    itself. Source: VISSL LogPerfTimeMetricsHook, MMEngine IterTimerHook.
    """

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    phase_metrics: ClassVar[frozenset[str]] = frozenset({"samples_per_s", "iteration_s"})
    state_fields: ClassVar[tuple[str, ...]] = ("_totals",)
    reach: ClassVar[int] = RECENT
    """Iterations after which recent rows are counted, before they are dropped."""

    def __post_init__(self) -> None:
        self._start = 0.0
        self._samples = self._iterations = 0
        """Samples and iterations of the current phase, as far as its rows are counted."""
        self._counted_rows = 0
        self._totals: dict[str, dict[str, float]] = {}
        """Seconds, samples and iterations of each phase since the last report."""

    def on_start(self, state: State) -> None:
        if state.clock is not None:
            state.clock.recording = True

    def on_phase_start(self, state: State) -> None:
        self._counted_rows = state.recent.total
        self._samples = self._iterations = 0
        self._start = perf_counter()

    @at_interval("reach")
    def on_step(self, state: State) -> None:
        self._count(state)

    def on_phase_end(self, state: State) -> None:
        seconds = perf_counter() - self._start
        self._count(state)
        before = self._totals.get(state.phase, {})
        phase = {"seconds": seconds, "samples": self._samples, "iterations": self._iterations}
        self._totals[state.phase] = {
            name: before.get(name, 0) + value for name, value in phase.items()
        }

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        for phase, total in self._totals.items():
            if total["iterations"] and total["seconds"] > 0:
                metrics[f"{phase}/samples_per_s"] = total["samples"] / total["seconds"]
                metrics[f"{phase}/iteration_s"] = total["seconds"] / total["iterations"]
        self._totals = {}

    def _count(self, state: State) -> None:
        """Count the rows since the last call."""
        rows = state.recent.total - self._counted_rows
        self._counted_rows += rows
        self._iterations += rows
        self._samples += sum(
            state.recent.columns(rows, names=("batch_size",)).get("batch_size", ())
        )
