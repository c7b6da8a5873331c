"""Memory: RSS against psutil, CUDA against an allocator whose peaks are known."""

from typing import Any

import pytest
import torch

from hooks import State
from hooks.interval import Interval
from hooks.stats import memory_stats
from hooks.stats.memory_stats import MemoryStats
from tests.hooks.phases import Ticks, run_phase


class _Allocator:
    """CUDA's counters in miniature: what is held now, and the most that was held since the last
    reset."""

    def __init__(self) -> None:
        self.held = self.peak = self.retries = 0

    def hold(self, size: int) -> None:
        self.held = size
        self.peak = max(self.peak, size)

    def stats(self, device: torch.device) -> dict[str, Any]:
        return {
            "allocated_bytes": {"all": {"current": self.held, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": 2 * self.held, "peak": 2 * self.peak}},
            "num_alloc_retries": self.retries,
        }

    def reset(self, device: torch.device) -> None:
        self.peak = self.held


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> _Allocator:
    allocator = _Allocator()
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", allocator.stats)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", allocator.reset)
    return allocator


def _row(hook: MemoryStats, state: State) -> dict[str, Any]:
    state.row = {}
    state.phase_iteration += 1
    hook.on_step(state)
    return state.row


def test_phase_that_has_begun_before_it_is_told_of_has_the_peak_since_then(
    allocator: _Allocator,
) -> None:
    """As in a custom loop, which tells of a phase with its first row."""
    hook = MemoryStats()
    state = State(device=torch.device("cuda"), phase="train")
    hook.on_start(state)
    allocator.hold(500)
    allocator.hold(40)
    state.elapsed_s = 2.0
    hook.on_phase_start(state)
    hook.on_phase_end(state)
    metrics: dict[str, Any] = {}
    hook.on_report(state, metrics)
    assert metrics["train/cuda_peak_allocated_bytes"] == 500


def test_peaks_of_iteration_phase_and_run_are_independent(allocator: _Allocator) -> None:
    """Readings by hand: MMEngine, ClassyVision and VISSL reset each other's peaks."""
    hook = MemoryStats(every=Interval(1, "iterations"), min_seconds=0)
    state = State(device=torch.device("cuda"))
    allocator.hold(999)
    allocator.hold(10)
    hook.on_start(state)  # 999 was before this run
    peaks = iter([500, 200, 300])

    def work() -> None:
        allocator.hold(next(peaks))
        allocator.hold(40)

    run_phase(hook, state, "train", [{}] * 3, work=work)
    rows = list(state.recent)
    assert [row["cuda_peak_allocated_bytes"] for row in rows] == [500, 200, 300]
    assert [row["cuda_peak_reserved_bytes"] for row in rows] == [1000, 400, 600]
    assert [row["cuda_allocated_bytes"] for row in rows] == [40, 40, 40]
    allocator.hold(700)  # between the phases: the run's, no phase's
    allocator.hold(40)
    peaks = iter([60])
    run_phase(hook, state, "val", [{}], work=work)
    metrics: dict[str, Any] = {}
    hook.on_report(state, metrics)
    assert metrics["val/cuda_peak_reserved_bytes"] == 120
    assert metrics["train/cuda_peak_allocated_bytes"] == 500
    assert metrics["val/cuda_peak_allocated_bytes"] == 60
    assert metrics["memory/cuda_peak_allocated_bytes"] == 700
    assert metrics["memory/cuda_peak_reserved_bytes"] == 1400


def test_peak_of_resident_memory_is_the_largest_of_the_phase_s_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = iter([950, 900, 600, 500, 400])
    monkeypatch.setattr(memory_stats, "resident_bytes", lambda: next(readings))
    hook = MemoryStats(every=Interval(2, "iterations"), min_seconds=0)
    state = State()
    metrics: dict[str, Any] = {}
    run_phase(hook, state, "train", [{}, {}])
    assert [row["rss_bytes"] for row in state.recent] == [900, 600]
    hook.on_report(state, metrics)
    assert metrics["train/peak_rss_bytes"] == 900


def test_fast_iterations_leave_out_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations of 8 ms: a reading when the phase starts, then after 20 ms or more."""
    ticks = Ticks()
    monkeypatch.setattr(memory_stats, "perf_counter", ticks)
    hook = MemoryStats(every=Interval(1, "iterations"), min_seconds=0.02)
    state = State()

    def work() -> None:
        ticks.now += 0.008

    run_phase(hook, state, "train", [{}] * 8, work=work)
    read = [number for number, row in enumerate(state.recent, 1) if "rss_bytes" in row]
    assert read == [1, 3, 6]


def test_peaks_continue_after_a_resume_within_a_phase(allocator: _Allocator) -> None:
    """Phase and run go on; what the new process held before it began counts for neither."""
    first = MemoryStats(every=Interval(1, "iterations"), min_seconds=0)
    state = State(device=torch.device("cuda"))
    first.on_start(state)
    allocator.hold(800)
    allocator.hold(10)
    first.on_phase_start(State(phase="train", device=state.device))
    for state.phase, size in (("val", 50), ("train", 600)):
        allocator.hold(size)
        allocator.retries += 1
        _row(first, state)
    saved = first.rank_state_dict()
    # Another process.
    allocator.retries = 70
    allocator.peak = 5000
    second = MemoryStats(every=Interval(1, "iterations"), min_seconds=0)
    metrics = {}
    second.load_rank_state_dict(saved)
    second.on_start(state)
    second.on_phase_start(state)
    allocator.hold(400)
    allocator.retries += 1
    assert _row(second, state)["cuda_alloc_retries"] == 3
    second.on_report(state, metrics)
    assert metrics["train/cuda_peak_allocated_bytes"] == 600
    assert metrics["val/cuda_peak_allocated_bytes"] == 50
    assert metrics["memory/cuda_peak_allocated_bytes"] == 800
