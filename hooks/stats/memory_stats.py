"""Memory of the process and its GPU."""

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge

from hooks.hook import Hook
from hooks.interval import Interval, Iterations, at_interval
from hooks.state import State

_PEAKS = {
    "rss_bytes": "peak_rss_bytes",
    "cuda_peak_allocated_bytes": "cuda_peak_allocated_bytes",
    "cuda_peak_reserved_bytes": "cuda_peak_reserved_bytes",
}
"""Columns with peaks, and their names in a report."""


@dataclass
class MemoryStats(Hook):
    """Measure the memory of the process and its GPU, with the peaks of iteration, phase and run.

    Each rank measures itself, without synchronizing. Peaks of RSS are the largest readings. Peaks
    and retries cover all attempts. Nothing else may reset CUDA's peak counters.

    Columns:
        * `rss_bytes`: Resident memory of the process.
        * `cuda_allocated_bytes`, `cuda_reserved_bytes`: Memory of tensors, and of torch's
          allocator, on CUDA.
        * `cuda_peak_allocated_bytes`, `cuda_peak_reserved_bytes`: Their peaks since the last
          reading.
        * `cuda_alloc_retries`: How many times so far the allocator has emptied its cache to find
          memory.

    Metrics:
        * `memory/rss_bytes`: Resident memory of rank 0.
        * `memory/peak_rss_bytes`, `memory/cuda_peak_allocated_bytes`,
          `memory/cuda_peak_reserved_bytes`: Peaks of the run.
        * `<phase>/peak_rss_bytes` and so on: Peaks of each phase.

    Source: MMEngine LogProcessor, VISSL SSLTensorboardHook, ClassyVision TensorboardPlotHook.
    """

    every: Iterations = Interval(10, "iterations")
    """Iterations between readings; the first row of a phase has one too."""
    min_seconds: Annotated[float, Ge(0)] = 0.02
    """Shortest time between two readings, in seconds, so that fast iterations do not pay for more
    than 50 readings a second; 0 reads at each `every`. Peaks on CUDA miss nothing in between."""

    phase_metrics: ClassVar[frozenset[str]] = frozenset(_PEAKS.values())
    rank_state_fields: ClassVar[tuple[str, ...]] = ("_run", "_phases", "_retries")

    def __post_init__(self) -> None:
        self._device: torch.device | None = None
        self._retries_before = 0
        self._retries = 0
        self._last_reading_s = 0.0
        self._run: dict[str, int] = {}
        """Peaks of the run by column, without the phases since the last report."""
        self._phases: dict[str, dict[str, int]] = {}
        """Peaks of the phases since the last report."""

    def on_start(self, state: State) -> None:
        if state.device.type == "cuda":
            self._device = state.device
            stats = torch.cuda.memory_stats_as_nested_dict(state.device)
            self._retries_before = stats.get("num_alloc_retries", 0) - self._retries
            torch.cuda.reset_peak_memory_stats(state.device)

    def on_phase_start(self, state: State) -> None:
        if not state.elapsed_s:
            # The peaks until now belong to the time before the phase.
            self._read_into(self._run)
        state.record(**self._read_in(state.phase))

    @at_interval("every")
    def on_step(self, state: State) -> None:
        if perf_counter() - self._last_reading_s >= self.min_seconds:
            state.record(**self._read_in(state.phase))

    def on_phase_end(self, state: State) -> None:
        self._read_in(state.phase)

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        metrics["memory/rss_bytes"] = self._read_into(self._run)["rss_bytes"]
        for peaks in self._phases.values():
            _keep_largest(self._run, peaks)
        metrics.update(_name_peaks("memory", self._run))
        for phase, peaks in self._phases.items():
            metrics.update(_name_peaks(phase, peaks))
        self._phases = {}

    def _read_in(self, phase: str) -> dict[str, int]:
        if phase not in self._phases:
            self._phases[phase] = {}
        return self._read_into(self._phases[phase])

    def _read_into(self, peaks: dict[str, int]) -> dict[str, int]:
        """Read all columns, and keep their largest values in `peaks`."""
        self._last_reading_s = perf_counter()
        columns = {"rss_bytes": resident_bytes()}
        if self._device is not None:
            columns.update(self._read_cuda(self._device))
        _keep_largest(peaks, columns)
        return columns

    def _read_cuda(self, device: torch.device) -> dict[str, int]:
        # torch.cuda.memory_allocated() and the like compute all of these each time.
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        torch.cuda.reset_peak_memory_stats(device)
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]
        self._retries = stats["num_alloc_retries"] - self._retries_before
        return {
            "cuda_allocated_bytes": allocated["current"],
            "cuda_reserved_bytes": reserved["current"],
            "cuda_peak_allocated_bytes": allocated["peak"],
            "cuda_peak_reserved_bytes": reserved["peak"],
            "cuda_alloc_retries": self._retries,
        }


def _keep_largest(peaks: dict[str, int], columns: Mapping[str, int]) -> None:
    for column, value in columns.items():
        if value > peaks.get(column, 0):
            peaks[column] = value


def _name_peaks(prefix: str, peaks: Mapping[str, int]) -> dict[str, int]:
    """Return the peaks by their names in a report."""
    return {f"{prefix}/{name}": peaks[column] for column, name in _PEAKS.items() if column in peaks}


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    statm = _open_statm(os.getpid())
    if statm is None:
        import psutil

        return int(psutil.Process().memory_info().rss)
    # psutil opens and parses the same file at eight times the cost.
    return int(os.pread(statm, 128, 0).split()[1]) * mmap.PAGESIZE


@cache
def _open_statm(process: int) -> int | None:
    """Open the memory sizes of a process until it ends; None where the system has no such file."""
    try:
        return os.open(f"/proc/{process}/statm", os.O_RDONLY)
    except OSError:
        return None
