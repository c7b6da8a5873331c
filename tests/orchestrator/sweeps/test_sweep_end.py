"""What ends a sweep before its trials have ended."""

from orchestrator.experiment.sections.sweep import Budget
from orchestrator.sweeps.budget import BudgetUse
from orchestrator.sweeps.sweep_end import SweepEnd


def test_a_sweep_ends_for_the_reason_that_came_first() -> None:
    is_requested = False
    use = BudgetUse(Budget(samples=100))
    end = SweepEnd(use, lambda: is_requested, fail_fast=True)
    assert not end.is_due()
    is_requested = True
    assert end.outcome is None, "nobody has asked"
    assert end.is_due()
    use.count_samples(0, 100)
    end.add_failure("trial-0000")
    assert end.is_due()
    assert end.outcome == ("interrupted", "interrupted")


def test_a_used_up_budget_stops_trials_and_a_failure_interrupts_them() -> None:
    use = BudgetUse(Budget(samples=100))
    end = SweepEnd(use, lambda: False)
    end.add_failure("trial-0003")
    assert not end.is_due(), "the other trials continue"
    end = SweepEnd(use, lambda: False, fail_fast=True)
    end.add_failure("trial-0003")
    assert end.is_due()
    assert end.outcome == ("interrupted", "trial-0003 failed, which ends the sweep")
    use.count_samples(0, 100)
    end = SweepEnd(use, lambda: False)
    assert end.is_due()
    assert end.outcome == ("stopped", "the sweep's budget of 100 samples is used up")
