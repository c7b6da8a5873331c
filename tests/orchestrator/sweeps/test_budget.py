"""Limits of the whole sweep, against counts by hand."""

import pytest

from orchestrator.experiment.sections.sweep import Budget
from orchestrator.sweeps.budget import BudgetUse
from tests.orchestrator.sweeps.search.draws import previous_trial
from tests.orchestrator.sweeps.test_stopping_rules import make_rules, settings


@pytest.mark.parametrize("seconds_used", [0, 3600])
def test_the_time_of_the_whole_sweep(seconds_used: float) -> None:
    time = 1000.0
    use = BudgetUse(Budget(time="2h"), seconds_used=seconds_used, clock=lambda: time)  # type: ignore[arg-type]
    time += 7199 - seconds_used
    assert use.explain_end() is None
    time += 1
    assert use.explain_end() == "the sweep's budget of 7200 s is used up"


def test_the_samples_of_the_whole_sweep_count_over_trials_and_ranks() -> None:
    use = BudgetUse(Budget(samples=100), ranks=2)
    use.count_samples(0, 20)
    use.count_samples(0, 30)
    assert use.explain_end() is None
    # A trial that continues another's checkpoint has the count of that: 10 there, then 20 more.
    use.count_samples(0, 10)
    use.count_samples(1, 10)
    assert use.explain_end() is None
    use.count_samples(0, 20)
    assert use.explain_end() == "the sweep's budget of 100 samples is used up"


def test_the_samples_of_a_shared_training_count_once_also_after_a_resume() -> None:
    """Three trials train together, and the leader ends at 20 samples. The others go on to 40; one
    trains alone."""
    use = BudgetUse(Budget(samples=50))
    rules = make_rules(settings(), use)
    reports = [{"val/score": 1, "samples": samples} for samples in (10, 20, 30)]
    leader = previous_trial({}, "stopped", reports[:2], name="a")
    followers = {
        number: previous_trial({}, "lost", reports, name=name, leader="a")
        for number, name in ((1, "b"), (2, "c"))
    }
    rules.replay({0: leader, **followers})
    use.share_training([1, 2])
    for trial, count, samples in [(1, 4, 40), (2, 4, 40), (3, 1, 9)]:
        rules.add_report(trial, count, {"val/score": 1, "samples": samples}, 0)
        assert use.explain_end() is None
    rules.add_report(3, 2, {"val/score": 1, "samples": 10}, 0)
    assert use.explain_end() == "the sweep's budget of 50 samples is used up"
