"""Each result is one that Tune accepts, and that tells the driver what has happened."""

import math
from types import SimpleNamespace
from typing import Any

from ray.tune.result import DONE, TRAINING_ITERATION

from orchestrator.sweeps.active_trial import TrialState
from orchestrator.sweeps.search.search import make_trial_config
from orchestrator.sweeps.tune.trial_data import TrialResult
from orchestrator.sweeps.tune.trial_results import TrialResults
from tests.orchestrator.sweeps.tune.fakes import METRIC, make_sweep

METRICS = {"epoch": 1, "step": 8, "samples": 64, METRIC: 0.5}


def make_results(*followers: int) -> TrialResults:
    """Make the results of trial 3, and of those that share its training run."""
    others: list[Any] = [{"number": number, "values": {}} for number in followers]
    return TrialResults(make_sweep(trials=1), make_trial_config(3, {}, others))


def make_trial(number: int, state: TrialState = TrialState.TRAINING) -> Any:
    reports = [{}, {**METRICS, "train/loss": 1.0}]
    return SimpleNamespace(number=number, reports=reports, training_s=12.5, state=state)


def test_the_results_of_a_single_trial_are_its_reports() -> None:
    """The last of them comes once it has ended."""
    results = make_results()
    assert results.is_due(make_trial(3))
    assert not results.is_due(make_trial(3, TrialState.ENDING))
    results.keep_report(make_trial(3), count=2)
    made = [results.make_result(make_trial(3)), results.make_last_result()]
    for result in made:
        assert {name: result[name] for name in METRICS} == METRICS
        assert TrialResult.read(result) == TrialResult(3, count=2, seconds=12.5, failed=[])
    assert [result[DONE] for result in made] == [False, True]


def test_a_shared_result_names_who_has_reported_and_once_who_has_failed() -> None:
    results = make_results(6)
    assert results.is_due(make_trial(3, TrialState.ENDING))
    results.keep_report(make_trial(3), count=2)
    results.keep_failure(5)
    results.keep_failure(4)
    made = [
        results.make_result(make_trial(3)),
        results.make_result(make_trial(6)),
        results.make_last_result(),
    ]
    told = [TrialResult.read(result) for result in made]
    assert [result.reported for result in told] == [3, 6, None]
    assert [result.failed for result in told] == [[5, 4], [], []]
    assert [result[DONE] for result in made] == [False, False, True]


def test_the_last_result_has_the_metrics_though_none_was_reported() -> None:
    """Also the last one of a single trial is no report then. Tune itself counts it."""
    result = make_results().make_last_result()
    assert math.isnan(result[METRIC])
    assert result[DONE]
    assert TRAINING_ITERATION not in result
    counted = {**result, TRAINING_ITERATION: 1}
    assert TrialResult.read(counted) == TrialResult(None, count=1, seconds=0, failed=[])
