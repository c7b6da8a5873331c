"""Rules that end a trial early, and limits that end the sweep."""

import math
from typing import Any

import pytest

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.stopping_rules import StoppingRules
from tests.orchestrator.sweeps.search.draws import previous_trial


def settings(**more: Any) -> SweepSettings:
    return SweepSettings.model_validate(
        {"metric": "val/score", "mode": "max", "space": {"x": {"choice": [1]}}, **more}
    )


@pytest.mark.parametrize(
    ("values", "mode", "stop", "after"),
    [
        ([0.1, 0.5, 0.9, 0.95], "max", {"target": 0.9}, 3),
        ([0.9, 0.5, 0.1], "min", {"target": 0.5}, 2),
        ([0.1, math.inf, 0.1], "max", {"target": 0.2}, None),
        ([0.1] * 9, "max", {"max_reports": 4}, 4),
        # A constant never improves: the first report is the best, then two without gain.
        ([0.5] * 9, "max", {"plateau": {"patience": 2}}, 3),
        ([0.1, 0.2, 0.3, 0.2, 0.2, 0.9], "max", {"plateau": {"patience": 2}}, 5),
        ([0.3, 0.2, 0.1, 0.2, 0.2, 0.9], "min", {"plateau": {"patience": 2}}, 5),
        ([0.1, 0.15, 0.2, 0.25], "max", {"plateau": {"patience": 2, "min_delta": 0.2}}, 3),
        ([0.1, 0.2, 0.3, 0.4], "max", {"plateau": {"patience": 1, "min_delta": 0.05}}, None),
        ([0.5] * 9, "max", {"plateau": {"patience": 2, "grace_period": 6}}, 7),
        ([math.nan, 0.1, math.nan, math.nan], "max", {"plateau": {"patience": 2}}, 4),
        ([math.nan] * 9, "max", {"plateau": {"patience": 2}}, 2),
        ([math.inf, 0.1, 0.2, 0.3], "max", {"plateau": {"patience": 2}}, None),
        ([0.5] * 9, "max", {"plateau": {"patience": 2}, "max_reports": 2}, 2),
        ([0.1] * 9, "max", {"time": "5m"}, 3),
        ([0.5] * 99, "max", {}, None),
    ],
)
def test_rules_stop_each_trial_by_itself(
    values: list[float], mode: str, stop: dict[str, Any], after: int | None
) -> None:
    """After which report, counted from 1; a report takes 100 seconds."""
    rules = StoppingRules(settings(mode=mode, stop=stop))
    for trial in ("trial-0000", "trial-0001"):
        reports = ((count, {"val/score": value}) for count, value in enumerate(values, 1))
        assert (
            next(
                (
                    count
                    for count, report in reports
                    if rules.should_stop(trial, report, 100 * count)
                ),
                None,
            )
            == after
        )
        assert (trial in rules.reasons) is (after is not None)


def test_a_metric_that_no_trial_reports_ends_the_sweep() -> None:
    rules = StoppingRules(settings())
    others = StoppingRules(settings())
    rules.trial_failed("trial-0000", "no such metric")
    assert rules.should_end_sweep()
    assert rules.metric_missing == "no such metric"
    assert rules.ending("trial-0001") == ("interrupted", "trial-0000 failed, which ends the sweep")
    others.should_stop("trial-0000", {"val/score": 1.0}, 0)
    others.trial_failed("trial-0001", "no such metric")
    assert not others.should_end_sweep()
    assert others.metric_missing is None


def test_the_time_of_the_whole_sweep() -> None:
    time = 1000.0
    stopping = StoppingRules(settings(budget={"time": "2h"}), clock=lambda: time)
    time += 7199
    assert stopping.budget_used() is None
    time += 1
    assert stopping.budget_used() == "the sweep's budget of 7200 s is used up"


def test_the_samples_of_the_whole_sweep_count_over_trials_and_ranks() -> None:
    stopping = StoppingRules(settings(budget={"samples": 100}), ranks=2)
    stopping.should_stop("a", {"val/score": 1, "samples": 20}, 0)
    stopping.should_stop("a", {"val/score": 1, "samples": 30}, 0)
    assert stopping.budget_used() is None
    # A trial that continues another's checkpoint has the count of that: 10 there, then 20 more.
    stopping.should_stop("a", {"val/score": 1, "samples": 10}, 0)
    stopping.should_stop("b", {"val/score": 1, "samples": 10}, 0)
    assert stopping.budget_used() is None
    stopping.should_stop("a", {"val/score": 1, "samples": 20}, 0)
    assert stopping.budget_used() == "the sweep's budget of 100 samples is used up"


def test_the_samples_of_a_shared_training_count_once_also_after_a_resume() -> None:
    """Three trials train together, and the leader ends at 20 samples. The others go on to 40; one
    trains alone."""
    stopping = StoppingRules(settings(budget={"samples": 50}))
    reports = [{"val/score": 1, "samples": samples} for samples in (10, 20, 30)]
    leader = previous_trial({}, "stopped", reports[:2], name="a")
    stopping.replay(
        [leader, *(previous_trial({}, "lost", reports, name=name, leader="a") for name in "bc")], 0
    )
    stopping.share_training("bc")
    for trial, samples in [("b", 40), ("c", 40), ("d", 9)]:
        stopping.should_stop(trial, {"val/score": 1, "samples": samples}, 0)
        assert stopping.budget_used() is None
    stopping.should_stop("d", {"val/score": 1, "samples": 10}, 0)
    assert stopping.budget_used() == "the sweep's budget of 50 samples is used up"
