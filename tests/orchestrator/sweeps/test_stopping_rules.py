"""Rules that end a trial early."""

import math
from typing import Any

import pytest

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.budget import BudgetUse
from orchestrator.sweeps.search.search import Search
from orchestrator.sweeps.stopping_rules import StoppingRules


def settings(**more: Any) -> SweepSettings:
    return SweepSettings.model_validate(
        {"metric": "val/score", "mode": "max", "space": {"x": {"choice": [1]}}, **more}
    )


def make_rules(settings: SweepSettings, budget: BudgetUse | None = None) -> StoppingRules:
    return StoppingRules(settings, Search(settings), budget or BudgetUse(settings.budget))


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
    rules = make_rules(settings(mode=mode, stop=stop))
    for trial in range(2):
        reports = ((count, {"val/score": value}) for count, value in enumerate(values, 1))
        assert (
            next(
                (
                    count
                    for count, report in reports
                    if rules.add_report(trial, count, report, 100 * count)
                ),
                None,
            )
            == after
        )
