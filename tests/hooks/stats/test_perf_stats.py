"""Throughput from counted samples and each phase's own wall time."""

from typing import Any

import pytest

from hooks import Plan, State
from hooks.stats import perf_stats
from hooks.stats.perf_stats import PerfStats
from tests.hooks.phases import Ticks, run_phase


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    ticks = Ticks()
    monkeypatch.setattr(perf_stats, "perf_counter", ticks)
    return ticks


def _passes(ticks: Ticks, seconds: float) -> Any:
    def work() -> None:
        ticks.now += seconds

    return work


def test_report_covers_the_samples_and_time_since_the_last_report(ticks: Ticks) -> None:
    """Four micro-batches, two steps, a short last batch: 7 + 7 + 7 + 3 samples in 4 x 0.5 s."""
    hook = PerfStats()
    state = State(accumulate=2)
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    third: dict[str, Any] = {}
    run_phase(hook, state, "train", [{}] * 4, batch_sizes=[7, 7, 7, 3], work=_passes(ticks, 0.5))
    hook.on_report(state, first)
    assert state.step == 2
    assert first == {
        "train/samples_per_s": pytest.approx(24 / 2.0),
        "train/iteration_s": pytest.approx(0.5),
    }
    run_phase(hook, state, "train", [{}], batch_sizes=[6], work=_passes(ticks, 2))
    hook.on_report(state, second)
    assert second == {
        "train/samples_per_s": pytest.approx(3.0),
        "train/iteration_s": pytest.approx(2.0),
    }
    hook.on_report(state, third)
    assert third == {}


@pytest.mark.parametrize("length", [999, 1000, 1001, 2000, 2345])
def test_evaluations_longer_than_the_recent_rows_are_counted_exactly(
    ticks: Ticks, length: int
) -> None:
    """Batches of 1, 2 and 3 samples in turn, after a training phase whose rows are recent, too; the
    last is uneven."""
    hook = PerfStats()
    state = State()
    metrics = {}
    run_phase(hook, state, "train", [{}] * 5, batch_sizes=[1000] * 5, work=_passes(ticks, 1))
    sizes = [1 + index % 3 for index in range(length - 1)] + [7]
    run_phase(hook, state, "val", [{}] * length, batch_sizes=sizes, work=_passes(ticks, 0.5))
    hook.on_report(state, metrics)
    assert metrics["val/samples_per_s"] == pytest.approx(sum(sizes) / (0.5 * length))
    assert metrics["val/iteration_s"] == pytest.approx(0.5)


def test_only_every_thousandth_iteration_calls_the_hook() -> None:
    plan = Plan({"perf": PerfStats()})
    for phase in ("train", "val"):
        state = State(phase=phase)
        for _ in range(999):
            state.phase_iteration += 1
            plan.fire("on_step", state)
    assert plan.drain_costs() == []
