"""Each result is one that Tune accepts, and that tells the driver what has happened."""

import math
from types import SimpleNamespace
from typing import Any

from ray.tune.result import DONE, TRAINING_ITERATION

from orchestrator.sweeps.tune.trial_data import FAILED, REPORTED, SECONDS
from orchestrator.sweeps.tune.trial_results import TrialResults
from tests.orchestrator.sweeps.tune.fakes import METRIC, make_sweep

METRICS = {"epoch": 1, "step": 8, "samples": 64, METRIC: 0.5}
TRIAL: Any = SimpleNamespace(reports=[{}, {**METRICS, "train/loss": 1.0}], training_s=12.5)


def test_the_results_of_a_single_trial_are_its_reports() -> None:
    results = TrialResults(make_sweep(trials=1), shares_training=False)
    results.keep_report(TRIAL, count=2)
    expected = {**METRICS, SECONDS: 12.5, TRAINING_ITERATION: 2}
    assert results.make_result(3) == {**expected, DONE: False}
    assert results.make_last_result() == {**expected, DONE: True}


def test_a_shared_result_names_who_has_reported_and_once_who_has_failed() -> None:
    results = TrialResults(make_sweep(trials=1), shares_training=True)
    results.keep_report(TRIAL, count=2)
    results.keep_failure(5)
    results.keep_failure(4)
    made = [results.make_result(3), results.make_result(6), results.make_last_result()]
    assert [result[REPORTED] for result in made] == [3, 6, None]
    assert [result[FAILED] for result in made] == [[5, 4], [], []]
    assert [result[DONE] for result in made] == [False, False, True]


def test_the_last_result_has_the_metrics_though_none_was_reported() -> None:
    """The driver tells by `REPORTED` that it is no report, also of a single trial."""
    result = TrialResults(make_sweep(trials=1), shares_training=False).make_last_result()
    assert math.isnan(result.pop(METRIC))
    assert result == {DONE: True, REPORTED: None, FAILED: []}
