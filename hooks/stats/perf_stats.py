"""Time of each iteration, and throughput of each phase."""

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, ClassVar

from hooks.hook import Hook, Priority
from hooks.interval import at_interval
from hooks.state import RECENT, State


@dataclass
class _Total:
    """Seconds, samples and iterations of a phase since the last report."""

    seconds: float = 0.0
    samples: int = 0
    iterations: int = 0


@dataclass
class PerfStats(Hook):
    """Time spans of each iteration, and samples per second of each phase.

    Turns on the loop's clock, which puts its spans (`data_wait_s`, `forward_s`, `step_s` and others) into each row. A
    report has `<phase>/samples_per_s` and `<phase>/iteration_s`, from the wall time of the phase and the samples in its
    batches, so they hold with accumulation and changing batch sizes. Each rank measures itself. Source: VISSL
    LogPerfTimeMetricsHook, MMEngine IterTimerHook.
    """

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    reach: ClassVar[int] = RECENT
    """Iterations of val and test after which recent rows are counted, before they are dropped."""

    def __post_init__(self) -> None:
        self._start = 0.0
        self._phase_start = (0, 0)
        self._counted_samples = self._counted_iterations = 0
        self._totals: dict[str, _Total] = {}

    def on_start(self, state: State) -> None:
        if state.clock is not None:
            state.clock.recording = True

    def on_phase_start(self, state: State) -> None:
        self._phase_start = (state.samples, state.iteration)
        self._counted_samples = self._counted_iterations = 0
        self._start = perf_counter()

    @at_interval("reach")
    def on_step(self, state: State) -> None:
        if state.phase != "train":
            new_iterations = state.phase_iteration - self._counted_iterations
            self._counted_samples += state.batch_size + _samples(state, new_iterations - 1)
            self._counted_iterations = state.phase_iteration

    def on_phase_end(self, state: State) -> None:
        total = self._totals.setdefault(state.phase, _Total())
        total.seconds += perf_counter() - self._start
        samples, iterations = self._done(state)
        total.samples += samples
        total.iterations += iterations

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        for phase, total in self._totals.items():
            if total.iterations and total.seconds > 0:
                # Keep a task's own value of the same name.
                metrics.setdefault(f"{phase}/samples_per_s", total.samples / total.seconds)
                metrics.setdefault(f"{phase}/iteration_s", total.seconds / total.iterations)
        self._totals.clear()

    def state_dict(self) -> dict[str, Any]:
        return {phase: asdict(total) for phase, total in self._totals.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._totals = {phase: _Total(**total) for phase, total in state.items()}

    def _done(self, state: State) -> tuple[int, int]:
        """Return samples and iterations of the ending phase; evaluation has only its rows to count."""
        if state.phase == "train":
            return state.samples - self._phase_start[0], state.iteration - self._phase_start[1]
        uncounted = state.phase_iteration - self._counted_iterations
        return self._counted_samples + _samples(state, uncounted), state.phase_iteration


def _samples(state: State, rows: int) -> int:
    return sum(state.recent.columns(rows, names=("batch_size",)).get("batch_size", ()))
