from collections import Counter

import pytest
from ray.tune.schedulers import ASHAScheduler

from orchestrator.errors import ConfigError
from orchestrator.experiment.sections.schedulers.asha import Asha, AshaRule
from orchestrator.experiment.sections.schedulers.hyperband import HyperBand
from tests.orchestrator.experiment.sections.schedulers import tune_trials
from tests.orchestrator.experiment.sections.schedulers.curves import count_reports, draw_curves


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options",
    [
        {"grace_period": 2, "reduction_factor": 3, "max_t": 9},
        {"grace_period": 1, "reduction_factor": 2, "max_t": 100},
        {"grace_period": 1, "reduction_factor": 1.5, "max_t": 12},
    ],
)
def test_trials_stop_where_tune_stops_them(options: dict[str, float], seed: int) -> None:
    curves = draw_curves(seed)
    ours = count_reports(AshaRule(Asha(**options), seed=0), curves)
    assert ours == tune_trials.count_reports(
        ASHAScheduler(metric="score", mode="max", **options), curves
    )
    assert len(set(ours)) > 1


def test_half_of_the_trials_pass_a_rung() -> None:
    """Each trial is compared with the median of those before: 1; 1, 3; 1, 3, 2."""
    rule = AshaRule(Asha(reduction_factor=2), seed=0)
    stops = [rule.should_stop(trial, 1, score) for trial, score in enumerate([1, 3, 2, 1.5])]
    assert stops == [False, False, False, True]


def test_a_trial_is_compared_once_at_each_rung() -> None:
    """The second rung is at report 2, the third at report 4."""
    rule = AshaRule(Asha(reduction_factor=2), seed=0)
    for report in range(1, 5):
        rule.should_stop(0, report, 1.0)
    assert [rule.should_stop(1, report, 0.5) for report in (2, 2, 3, 4)] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("factor", [1.1, 1000.0])
def test_rungs_are_found_with_every_factor_that_is_allowed(factor: float) -> None:
    rule = AshaRule(Asha(reduction_factor=factor, brackets=100), seed=0)
    assert not any(rule.should_stop(trial, 10**9, 1.0) for trial in range(100))


@pytest.mark.parametrize(
    "options", [{"reduction_factor": 1.01}, {"reduction_factor": 1e200}, {"brackets": 101}]
)
@pytest.mark.parametrize("kind", [Asha, HyperBand])
def test_factors_without_sense_are_refused(
    kind: type[Asha | HyperBand], options: dict[str, float]
) -> None:
    """The rungs would be nearer than one report, or further apart than any run is long."""
    with pytest.raises(ConfigError):
        kind(**options)


def test_later_brackets_begin_later_and_have_fewer_trials() -> None:
    """The first rungs are at 1, 2 and 4 reports. A bracket has e times as many trials as the next.

    Each trial is worse than those before, so it stops at the first rung of its bracket.
    """
    rule = AshaRule(Asha(brackets=3), seed=0)
    ends: Counter[int] = Counter()
    for trial in range(2000):
        stops = (report for report in (1, 2, 4) if rule.should_stop(trial, report, -trial))
        ends[next(stops, 0)] += 1
    shares = [ends[report] / 2000 for report in (1, 2, 4)]
    assert shares == pytest.approx([0.665, 0.245, 0.09], abs=0.03)


def test_a_trial_stays_in_its_bracket() -> None:
    """As after a resume, where the rule begins anew."""
    rules = [AshaRule(Asha(brackets=5), seed=3) for _ in range(2)]
    for trial in range(50):
        stops = [
            [rule.should_stop(trial, report, -trial) for report in (1, 2, 4, 8, 16)]
            for rule in rules
        ]
        assert stops[0] == stops[1]
