"""When trials end before their time, and when the sweep does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.config.sections.sweep import Sweep
from orchestrator.sweeps.stopping_rules import StoppingRules


def settings(**more: Any) -> Sweep:
    return Sweep.model_validate({"metric": "val/score", "mode": "max", "space": {"x": {"choice": [1]}}, **more})


def stopped_at(values: list[float], mode: str = "max", seconds: float = 0, **stop: Any) -> int | None:
    """After which report a trial with these values is stopped, counted from 1."""
    stopping = StoppingRules(settings(mode=mode, stop=stop))
    for count, value in enumerate(values, start=1):
        if stopping.stops("trial-0000", {"val/score": value}, seconds * count):
            return count
    return None


@pytest.mark.parametrize(
    ("values", "mode", "stop", "after"),
    [
        ([0.1, 0.5, 0.9, 0.95], "max", {"target": 0.9}, 3),
        ([0.9, 0.5, 0.1], "min", {"target": 0.5}, 2),
        ([0.1] * 5, "max", {"target": 0.2}, None),
        ([0.1] * 9, "max", {"max_reports": 4}, 4),
        # A constant never improves: the first report is the best, then two without gain.
        ([0.5] * 9, "max", {"plateau": {"patience": 2}}, 3),
        ([0.1, 0.2, 0.3, 0.2, 0.2, 0.9], "max", {"plateau": {"patience": 2}}, 5),
        ([0.3, 0.2, 0.1, 0.2, 0.2, 0.9], "min", {"plateau": {"patience": 2}}, 5),
        ([0.1, 0.15, 0.2, 0.25], "max", {"plateau": {"patience": 2, "min_delta": 0.2}}, 3),
        ([0.1, 0.2, 0.3, 0.4], "max", {"plateau": {"patience": 1, "min_delta": 0.05}}, None),
        ([0.5] * 9, "max", {"plateau": {"patience": 2, "grace_period": 6}}, 7),
        ([math.nan, 0.1, math.nan, math.nan], "max", {"plateau": {"patience": 2}}, 4),
        ([0.5] * 9, "max", {"plateau": {"patience": 2}, "max_reports": 2}, 2),
    ],
)
def test_when_a_trial_is_stopped(values: list[float], mode: str, stop: dict[str, Any], after: int | None) -> None:
    assert stopped_at(values, mode, **stop) == after


def test_a_metric_that_is_nowhere_ends_the_sweep_and_one_that_was_there_does_not() -> None:
    nowhere, was_there = StoppingRules(settings()), StoppingRules(settings())
    nowhere.trial_failed("trial-0000", "no such metric")
    assert nowhere.sweep_is_over()
    assert nowhere.metric_missing == "no such metric"
    assert nowhere.ending("trial-0001") == ("interrupted", "trial-0000 failed, which ends the sweep")
    was_there.stops("trial-0000", {"val/score": 1.0}, 0)
    was_there.trial_failed("trial-0001", "no such metric")
    assert not was_there.sweep_is_over()
    assert was_there.metric_missing is None


def test_a_trial_has_its_time() -> None:
    assert stopped_at([0.1] * 9, seconds=100, time="5m") == 3


def test_trials_are_judged_each_by_itself_and_the_reason_is_kept() -> None:
    stopping = StoppingRules(settings(stop={"max_reports": 2}))
    for trial in ("a", "b"):
        assert not stopping.stops(trial, {"val/score": 1}, 0)
    assert stopping.stops("a", {"val/score": 1}, 0)
    assert stopping.reasons == {"a": "max_reports: 2 reached"}


def test_the_time_of_the_whole_sweep() -> None:
    time = 1000.0
    stopping = StoppingRules(settings(budget={"time": "2h"}), clock=lambda: time)
    time += 7199
    assert stopping.budget_used() is None
    time += 1
    assert stopping.budget_used() == "the sweep's budget of 7200 s is used up"


def test_the_samples_of_the_whole_sweep_count_over_trials_and_ranks() -> None:
    stopping = StoppingRules(settings(budget={"samples": 100}), ranks=2)
    stopping.stops("a", {"val/score": 1, "samples": 20}, 0)
    stopping.stops("a", {"val/score": 1, "samples": 30}, 0)
    assert stopping.budget_used() is None
    # One that goes on from another's checkpoint has its count: 10 there, then 20 more.
    stopping.stops("a", {"val/score": 1, "samples": 10}, 0)
    stopping.stops("b", {"val/score": 1, "samples": 10}, 0)
    assert stopping.budget_used() is None
    stopping.stops("a", {"val/score": 1, "samples": 20}, 0)
    assert stopping.budget_used() == "the sweep's budget of 100 samples is used up"


def test_without_rules_nothing_ends() -> None:
    stopping = StoppingRules(settings())
    assert not any(stopping.stops("a", {"val/score": 0.5}, 1e9) for _ in range(1000))
    assert stopping.budget_used() is None
