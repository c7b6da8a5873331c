import math
import random
from typing import Any

import pytest

from orchestrator.disk.sweep_folder import trial_name
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.pruner import Pruner
from tests.orchestrator.sweeps.search.draws import previous_trial

METRIC = "val/score"


def make_settings(**more: Any) -> SweepSettings:
    space = {"a": {"grid": [*range(10)]}}
    return SweepSettings.model_validate(
        {"metric": METRIC, "mode": "max", "search": "grid", "space": space, **more}
    )


def make_pruner(settings: SweepSettings, previous: Any = ()) -> Pruner:
    pruner = Pruner.make(settings, dict(previous))
    assert pruner is not None
    return pruner


def test_schedulers_that_stop_no_single_trials_have_none() -> None:
    for scheduler in ("fifo", "race", "hyperband", "pbt"):
        assert Pruner.make(make_settings(scheduler=scheduler), {}) is None


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_worse_trials_stop_in_either_mode(mode: str) -> None:
    """At the first report half of the trials continue."""
    pruner = make_pruner(make_settings(scheduler="asha", mode=mode))
    stops = [
        pruner.should_stop(number, 1, {METRIC: result})
        for number, result in enumerate([0.5, 0.1, 0.9])
    ]
    assert stops == [False, mode == "max", mode == "min"]


@pytest.mark.parametrize("result", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scheduler", ["asha", "median"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_a_diverged_trial_stops_and_the_others_continue(
    scheduler: str, repeats: int, result: float
) -> None:
    pruner = make_pruner(make_settings(scheduler=scheduler, repeats=repeats))
    stopped = []
    for number in range(10 * repeats):
        configuration = number // repeats
        report = {METRIC: result if configuration == 6 else configuration}
        if pruner.should_stop(number, 1, report):
            stopped.append(configuration)
    assert stopped == [6] * repeats


@pytest.mark.parametrize(("aggregate", "stops"), [("mean", False), ("lower_bound", True)])
def test_repeats_are_compared_by_their_aggregate(aggregate: str, stops: bool) -> None:
    """The median of the scores before is 0.55.

    The last trial has 0.4, and its configuration the mean (0.8 + 0.4) / 2 = 0.6. The standard error
    of two values is half their difference, so the lower bound is 0.4.
    """
    pruner = make_pruner(make_settings(scheduler="asha", repeats=2, aggregate=aggregate))
    results = [0.5, 0.6, 0.8, 0.4]
    decisions = [
        pruner.should_stop(number, 1, {METRIC: result}) for number, result in enumerate(results)
    ]
    assert decisions[-1] is stops


@pytest.mark.parametrize("n_repeated", [0, 1])
@pytest.mark.parametrize("repeats", [1, 4])
@pytest.mark.parametrize("scheduler", ["asha", {"type": "asha", "brackets": 3}, "median"])
def test_trials_stop_after_a_resume_where_they_stop_without_one(
    scheduler: Any, repeats: int, n_repeated: int
) -> None:
    """The sweep is interrupted in each of its trials, which then repeats its last report or goes on
    with the next one."""
    settings = make_settings(
        scheduler=scheduler,
        repeats=repeats,
        trials=20,
        search="random",
        space={"a": {"uniform": [0, 1]}},
    )
    draw = random.Random(0)
    curves = [[draw.random() + draw.random() * report for report in range(12)] for _ in range(20)]

    def train(pruner: Pruner, number: int, first: int = 1) -> int:
        for count in range(first, 13):
            if pruner.should_stop(number, count, {METRIC: curves[number][count - 1]}):
                return count
        return 12

    uninterrupted = make_pruner(settings)
    expected = [train(uninterrupted, number) for number in range(20)]

    for interrupted in range(1, 20):
        reports = max(1, expected[interrupted] - 1 + n_repeated)
        counts = [*expected[:interrupted], reports]
        previous = {
            number: previous_trial(
                {},
                "stopped" if number < interrupted else "lost",
                [{METRIC: score} for score in curves[number][:count]],
                name=trial_name(number),
            )
            for number, count in enumerate(counts)
        }
        resumed = make_pruner(settings, previous)
        first = reports + 1 - n_repeated
        if first > expected[interrupted]:
            continue
        ends = [train(resumed, interrupted, first)]
        ends += [train(resumed, number) for number in range(interrupted + 1, 20)]
        assert ends == expected[interrupted:]
