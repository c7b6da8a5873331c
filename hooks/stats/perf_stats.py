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
    """Measure the time spans of each iteration, and the samples per second of each phase.

    Turns on the loop's clock, which puts the spans of an iteration into its row. They add up to
    `step_s`. Each rank measures itself. On CUDA, spans are GPU time between CUDA events, so that
    the host never waits for a measurement.

    Ranks that train together wait for the slowest, so all have the same `step_s`. A slow rank has a
    short `all_reduce_wait_s` and is slow in another span, while the ranks that wait for it have a
    long `all_reduce_wait_s`. The wait begins when the rank's own backward pass ends, and ends when
    the gradients of all ranks have arrived, so it includes the rest of the transfer. Collectives
    that a task, a hook or `strategy: fsdp` calls count towards the span in which they are called.

    Columns:
        * `data_wait_s`: Wait for the loader.
        * `to_device_s`: Copy of the batch to the device.
        * `forward_s`: Forward pass.
        * `loss_s`: Loss and metrics of the task.
        * `backward_s`: The rank's own backward pass.
        * `all_reduce_wait_s`: Wait for the gradients of other ranks.
        * `optimizer_s`: Unscaling, the optimizer's step, and zeroing gradients.
        * `hooks_s`: All hooks.
        * `checkpoint_s`: A checkpoint within a phase, just before this iteration.
        * `other_s`: Counting, recording and flushing.

    Metrics:
        * `<phase>/samples_per_s`: Samples in the batches of the phase by its wall time, on rank 0,
          also with accumulation and changing batch sizes. After a resume it covers the rest of the
          phase.
        * `<phase>/iteration_s`: Wall time of an iteration, on rank 0.

    Source: VISSL LogPerfTimeMetricsHook, MMEngine IterTimerHook.
    """

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    phase_metrics: ClassVar[frozenset[str]] = frozenset({"samples_per_s", "iteration_s"})
    state_fields: ClassVar[tuple[str, ...]] = ("_totals",)
    reach: ClassVar[int] = RECENT
    """Iterations after which recent rows are counted, before they are dropped."""

    def __post_init__(self) -> None:
        self._start = 0.0
        self._samples = 0
        """Samples of the current phase, as far as its rows are counted."""
        self._iterations = 0
        """Iterations of the current phase, as far as its rows are counted."""
        self._counted_rows = 0
        self._totals: dict[str, dict[str, float]] = {}
        """Seconds, samples and iterations of each phase since the last report."""

    def on_start(self, state: State) -> None:
        if state.clock is not None:
            state.clock.recording = True

    def on_phase_start(self, state: State) -> None:
        self._counted_rows = state.recent.total
        self._samples = 0
        self._iterations = 0
        self._start = perf_counter() - state.elapsed_s

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
        columns = state.recent.columns(rows, names=("batch_size",))
        self._samples += sum(columns.get("batch_size", ()))
