"""Each result is one that Tune accepts, and that tells the driver what has happened."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.result import DONE, TRAINING_ITERATION

from orchestrator.sweeps.active_trial import TrialState
from orchestrator.sweeps.search.search import make_trial_config
from orchestrator.sweeps.tune.result_maker import ResultMaker
from orchestrator.sweeps.tune.trial_data import SCORE, TrialReport, TrialResult
from tests.orchestrator.sweeps.tune.fakes import METRIC, make_sweep

METRICS = {"epoch": 1, "step": 8, "samples": 64, METRIC: 0.5}
REPORT = TrialReport(METRICS, count=2, seconds=12.5)


def make_results(*followers: int, metric: str = METRIC) -> ResultMaker:
    """Make the results of trial 3, and of those that share its training run."""
    others: list[Any] = [{"number": number, "values": {}} for number in followers]
    return ResultMaker(make_sweep(trials=1, metric=metric), make_trial_config(3, {}, others))


def make_trial(number: int, state: TrialState = TrialState.TRAINING, **metrics: float) -> Any:
    reports = [{}, {**METRICS, "train/loss": 1.0, **metrics}]
    return SimpleNamespace(number=number, reports=reports, training_s=12.5, state=state)


def test_the_results_of_a_single_trial_are_its_reports() -> None:
    """The last report comes once the trial has ended."""
    results = make_results()
    first = results.add_report(make_trial(3), count=2)
    assert first is not None
    assert TrialResult.read(first) == TrialResult(REPORT, 3)
    assert (first[SCORE], first[TRAINING_ITERATION], first[DONE]) == (0.5, 2, False)

    assert results.add_report(make_trial(3, TrialState.ENDING), count=2) is None
    last = results.make_last_result()
    assert TrialResult.read(last) == TrialResult(REPORT, 3, is_last=True)
    assert (last[SCORE], last[TRAINING_ITERATION], last[DONE]) == (0.5, 2, True)


def test_a_last_result_that_repeats_a_report_is_no_report() -> None:
    results = make_results()
    results.add_report(make_trial(3), count=2)
    last = results.make_last_result()
    assert TrialResult.read(last).new_report is None
    assert (last[SCORE], last[TRAINING_ITERATION]) == (0.5, 2)

    restored = make_results()
    restored.restore(REPORT)
    assert TrialResult.read(restored.make_last_result()) == TrialResult(REPORT, None, is_last=True)


def test_a_shared_result_names_who_has_reported_and_once_who_has_failed() -> None:
    results = make_results(6)
    results.keep_failure(5)
    results.keep_failure(4)
    made: list[Any] = [
        results.add_report(make_trial(3, TrialState.ENDING), count=2),
        results.add_report(make_trial(6), count=2),
        results.make_last_result(),
    ]
    told = [TrialResult.read(result) for result in made]
    assert [result.reported for result in told] == [3, 6, None]
    assert [result.failed for result in told] == [(5, 4), (), ()]
    assert [result[DONE] for result in made] == [False, False, True]


def test_the_last_result_has_a_score_though_none_was_reported() -> None:
    """Also the last one of a single trial is no report then. Tune itself counts it."""
    result = make_results().make_last_result()
    assert math.isnan(result[SCORE])
    assert result[DONE]
    assert TRAINING_ITERATION not in result
    assert TrialResult.read(result) == TrialResult(None, None, is_last=True)


@pytest.mark.parametrize("name", ["score", "content", "done", "config", "timestamp", "seconds"])
def test_a_metric_may_have_the_name_of_an_entry_of_tune(name: str) -> None:
    result = make_results(metric=name).add_report(make_trial(3, **{name: 0.25}), count=2)
    assert result is not None
    report = TrialResult.read(result).report
    assert report is not None
    assert report.metrics[name] == result[SCORE] == 0.25
    assert not result[DONE]
