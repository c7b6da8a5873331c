import pytest
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import MedianStoppingRule

from orchestrator.experiment.sections.schedulers.median import Median, MedianRule
from tests.orchestrator.experiment.sections.schedulers import tune_trials
from tests.orchestrator.experiment.sections.schedulers.curves import count_reports, draw_curves


@pytest.mark.parametrize("seed", range(3))
def test_trials_stop_where_tune_stops_them(seed: int) -> None:
    options = {"grace_period": 2, "min_samples_required": 2}
    curves = draw_curves(seed)
    ours = count_reports(MedianRule(Median(**options)), curves)
    assert ours == tune_trials.count_reports(
        MedianStoppingRule(TRAINING_ITERATION, "score", "max", **options), curves
    )
    assert len(set(ours)) > 1


def test_best_score_is_compared_with_the_others_running_averages() -> None:
    """By the second report the others average 2 and 4, with a median of 3."""
    rule = MedianRule(Median(min_samples_required=2))
    for report, scores in enumerate([(1, 3), (3, 5), (100, 100)], 1):
        for trial, score in enumerate(scores):
            rule.should_stop(trial, report, score)
    rule.should_stop(2, 1, 2.9)
    assert rule.should_stop(2, 2, 0.0)
    rule.should_stop(3, 1, 3.1)
    assert not rule.should_stop(3, 2, 0.0)


def test_repeated_reports_replace_those_after_them() -> None:
    """A trial that restarts from its first report is worse from then on."""
    rule = MedianRule(Median(min_samples_required=1))
    for report, score in [(1, 2.0), (2, 9.0), (3, 9.0), (2, 0.0)]:
        rule.should_stop(0, report, score)
    assert not rule.should_stop(1, 2, 1.5), "the other's average is 1"
    assert not rule.should_stop(1, 3, 0.0), "the other has no third report any more"
