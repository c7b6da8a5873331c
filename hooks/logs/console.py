"""Progress lines on the terminal."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Annotated, Any

from annotated_types import Ge

from hooks.interval import at_interval, count_iterations
from hooks.logs.shared.readings import get_learning_rates, select_phase_metrics
from hooks.logs.shared.statistic import Window
from hooks.logs.shared.window_logger import WindowLogger
from hooks.logs.shared.window_statistics import Windows
from hooks.recent import RECENT
from hooks.state import State

_RATE = re.compile(r"lr(_\d+)?")
_SHOWN = (
    "loss",
    "lr",
    "lr_1",
    "lr_2",
    "lr_3",
    "step_s",
    "data_wait_s",
    "rss_bytes",
    "cuda_peak_allocated_bytes",
)
"""Columns that a line may show by default."""
_MOST_RATES = 4
"""Maximum number of learning rates to list; more are printed as a range."""


@dataclass
class Console(WindowLogger):
    """Print progress lines at an interval, and a line of metrics at the end of each phase.

        console: {every: 100 iterations, window: 50}

    A line has the phase, the epoch (from 1) and its iteration, the learning rates, loss and time
    per iteration as means over `window` (`data` is the wait for the batch, if `perf_stats` is on),
    the memory and, from the second line on, the remaining time. Runs on the master; lines go to
    `state.display`, or to the logger `hookyard`. When iterations are fast, a line is left out if it
    would follow the previous one within `min_seconds`. Source: MMEngine LoggerHook and
    LogProcessor, VISSL LogLossLrEtaHook, ClassyVision LossLrMeterLoggingHook; tqdm's `mininterval`.
    """

    window: Window = 10
    min_seconds: Annotated[float, Ge(0)] = 0.1
    """Shortest time between two lines, in seconds; 0 prints a line at each `every`. The line at the
    end of a phase always follows."""
    columns: tuple[str, ...] = ("grad_norm",)
    """Additional columns or statistics to print if they are recorded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = {*_SHOWN, *self.columns}
        columns.update(statistic.column for statistic in self.statistics.values())
        self._windows = Windows(self.window, self.statistics, columns)
        self._eta_start: tuple[float, int] | None = None
        """Time and iteration of this attempt's first line of training, which ends the warm-up."""
        self._memory: float | None = None
        self._phase_start = 0.0
        self._last_line: float | None = None

    def on_phase_start(self, state: State) -> None:
        super().on_phase_start(state)
        self._phase_start = perf_counter() - state.elapsed_s

    @at_interval("every")
    def on_step(self, state: State) -> None:
        if self._is_too_soon():
            return
        rates = get_learning_rates(state)
        self._show(state, state.phase_iteration, rates, {**rates, **state.row})

    def on_phase_end(self, state: State) -> None:
        if state.phase_length > self.every.count and self._windows.has_changed():
            # The training phase resets its counter when it completes the epoch.
            is_whole = state.phase == "train" and state.epoch_completed
            iteration = state.phase_length if is_whole else state.phase_iteration
            self._show(state, iteration, get_learning_rates(state), {})
        self._windows.update()
        parts = [f"{state.phase} done  epoch {state.epoch_number}"]
        for name, value in select_phase_metrics(state).items():
            short = name.removeprefix(f"{state.phase}/")
            parts.append(f"{short} {value:.4g}")
        seconds = perf_counter() - self._phase_start
        parts.append(f"in {seconds:.1f} s")
        state.show("  ".join(parts))

    def _is_too_soon(self) -> bool:
        """Return whether a line can be left out because the previous one is too recent."""
        if self._last_line is None or perf_counter() - self._last_line >= self.min_seconds:
            return False
        # The rows must be read before the oldest of them is dropped.
        return self._windows.unread_rows + self.every.count <= RECENT

    def _show(
        self, state: State, iteration: int, rates: Mapping[str, float], row: Mapping[str, Any]
    ) -> None:
        """Print a line, with the learning rates and the columns of the current row so far."""
        self._last_line = perf_counter()
        values = self._windows.summarize(row)
        self._memory = values.get(
            "cuda_peak_allocated_bytes", values.get("rss_bytes", self._memory)
        )
        length = f"/{state.phase_length}" if state.phase_length else ""
        parts = [f"{state.phase}  epoch {state.epoch_number}  {iteration}{length}"]
        if state.phase == "train":
            parts += self._format_training(state, {**rates, **values})
        for name in dict.fromkeys(("loss", *self.columns, *self.statistics)):
            if name in values:
                parts.append(f"{name} {values[name]:.4g}")
        if "step_s" in values:
            parts.append(_format_time(values))
        if state.phase == "train":
            remaining_s = self._estimate_remaining_s(state)
            if remaining_s is not None:
                parts.append(f"eta {timedelta(seconds=round(remaining_s))}")
        if self._memory is not None:
            parts.append(f"memory {self._memory / 2**20:.0f} MiB")
        state.show("  ".join(parts))

    def _estimate_remaining_s(self, state: State) -> float | None:
        """Return the time to the end of training, at the mean speed so far, with validations and
        checkpoints."""
        now = perf_counter()
        if self._eta_start is None:
            self._eta_start = (now, state.iteration)
        start, first_iteration = self._eta_start
        remaining = _count_remaining_iterations(state)
        measured = state.iteration - first_iteration
        if remaining is None or not measured:
            return None
        return remaining * (now - start) / measured

    def _format_training(self, state: State, values: Mapping[str, float]) -> list[str]:
        """Return the step, if the run's length is in steps, and the learning rates."""
        parts = []
        if state.max_steps is not None:
            parts.append(f"step {state.step}/{state.max_steps}")

        rates = list(dict.fromkeys(rate for name, rate in values.items() if _RATE.fullmatch(name)))
        if len(rates) > _MOST_RATES:
            parts.append(f"lr {min(rates):.4g} to {max(rates):.4g}")
        elif rates:
            listed = ", ".join(f"{rate:.4g}" for rate in rates)
            parts.append(f"lr {listed}")
        return parts


def _format_time(values: Mapping[str, float]) -> str:
    """Return the time of an iteration, and in parentheses its wait for the batch."""
    time = f"{1000 * values['step_s']:.1f} ms"
    if "data_wait_s" not in values:
        return time
    return f"{time} (data {1000 * values['data_wait_s']:.1f} ms)"


def _count_remaining_iterations(state: State) -> int | None:
    """Return the remaining training iterations; None if the run has no end, or the length of an
    epoch is unknown.

    In a custom loop, an epoch is assumed to be as long as those before.
    """
    if state.ended_early:
        return 0
    if state.max_steps is not None:
        steps = max(0, state.max_steps - state.step)
        return count_iterations(steps, state.accumulate, state.phase_length, state.phase_iteration)
    length = state.phase_length
    if not length and state.epoch:
        length = state.iterations_before // state.epoch
    if state.max_epochs is None or not length:
        return None
    return max(0, (state.max_epochs - state.epoch) * length - state.phase_iteration)
