"""A race of configurations over seeds: its order, and its probabilities against SciPy and hand calculations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from orchestrator import ConfigError, resume_sweep, sweep
from orchestrator.config.sections.sweep import Stop, Sweep
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from orchestrator.sweeps.search.race import Forecast, Race
from orchestrator.sweeps.stopping_rules import StoppingRules
from tests.orchestrator.sweeps.test_in_process import searching


def settings(configurations: int, repeats: int = 5, **fields: Any) -> Sweep:
    return Sweep.model_validate(
        {
            "metric": "val/loss",
            "mode": "min",
            "search": "grid",
            "repeats": repeats,
            "scheduler": {"type": "race", **fields},
            "space": {"optimizer.lr": {"grid": [*range(configurations)]}},
        }
    )


def race_of(configurations: int, previous: dict[int, PreviousTrial] | None = None, **options: Any) -> Race:
    return Race(settings(configurations, **options), 0, previous or {})


def begin(race: Race) -> int | None:
    config = race.suggest()
    return config["number"] if config else None


def end(race: Race, number: int, loss: float) -> None:
    report = {"val/loss": loss}
    race.reported(number, report)
    race.ended(number, report)


def run(race: Race, losses: np.ndarray, at_once: int = 1) -> list[list[int]]:
    """Train several trials at a time, and return those that began together; `losses` by configuration and seed."""
    begun = []
    while together := [number for _ in range(at_once) if (number := begin(race)) is not None]:
        begun.append(together)
        for number in together:
            end(race, number, losses.ravel()[number])
    assert race.is_finished
    return begun


LOSSES = np.array(
    [
        [1.00, 1.10, 1.00, 1.11, 1.02],
        [0.50, 0.63, 0.49, 0.60, 0.50],
        [0.52, 0.60, 0.52, 0.62, 0.55],
        [3.00, 2.90, 3.10, 3.00, 3.00],
        [0.70, 0.82, 0.72, 0.81, 0.70],
    ]
)


def test_all_begin_with_the_first_seed_and_then_the_best_go_first() -> None:
    race = race_of(5)
    begun = [number for (number,) in run(race, LOSSES)]
    assert begun[:5] == [0, 5, 10, 15, 20], "the first seed of each"
    assert begun[5:8] == [6, 11, 12], "then the next of the best so far"
    assert [number for number in begun if number // 5 == 3] == [15], "the worst trains with one seed only"
    assert race.eliminated.keys() == {0, 3, 4}
    assert {*begun} >= {*range(5, 15)}, "the best, and one that may still be, train with all seeds"


def test_a_higher_level_eliminates_more() -> None:
    begun = [len(run(race_of(5, level=level), LOSSES)) for level in (0.0001, 0.05, 0.49)]
    assert begun == sorted({*begun}, reverse=True)
    assert len(begun) == 3


def test_side_by_side_the_worse_half_waits_for_the_better() -> None:
    assert run(race_of(5), LOSSES, at_once=8)[:2] == [[0, 5, 10, 15, 20], [6, 7, 8, 9]], "the best with all its seeds"
    race = race_of(5)
    first = [begin(race) or 0 for _ in range(5)]
    assert begin(race) is None, "a second seed waits for the first of all"
    assert not race.is_finished
    for number in first:
        end(race, number, LOSSES.ravel()[number])
    assert [begin(race) for _ in range(5)] == [6, 7, 8, 9, None], "the others wait for the best"
    for number in (6, 7, 8, 9):
        end(race, number, 0.51)
    assert [begin(race), begin(race)] == [11, None], "the worse half waits although there is room"


def test_a_configuration_of_which_more_trials_failed_is_no_contender() -> None:
    race = race_of(3)
    assert [begin(race) for _ in range(4)] == [0, 5, 10, None]
    race.ended(0, None)
    race.reported(5, {"val/loss": float("nan")})
    race.ended(5, {"val/loss": float("nan")})
    race.reported(10, {"val/loss": 0.5})
    race.reported(10, {"val/loss": float("nan")})
    race.ended(10, {"val/loss": float("nan")})
    assert begin(race) == 11
    race.ended(11, None)
    assert [begin(race), begin(race)] == [12, 13], "the only one with a result"


def test_a_report_at_which_a_rule_stops_the_trial_counts() -> None:
    chosen = settings(2).model_copy(update={"stop": Stop(target=0.6)})
    race = Race(chosen, 0, {})
    rules = StoppingRules(chosen, search=race)
    assert begin(race) == 0
    assert rules.stops("trial-0000", {"val/loss": 0.5}, 0)
    race.ended(0, {"val/loss": 0.5})
    assert begin(race) == 5
    race.ended(5, {"val/loss": 0.5})
    assert begin(race) == 1, "configuration 0 has not failed"


def test_reports_of_earlier_attempts_count() -> None:
    over = {
        number: PreviousTrial({}, True, reports=({"val/loss": float(LOSSES.ravel()[number])},))
        for number in (0, 5, 10, 15, 20, 6, 11)
    }
    race = race_of(5, {**over, 12: PreviousTrial({"optimizer.lr": 9}, False)})
    assert race.eliminated.keys() == {3}
    config = race.suggest()
    assert config is not None
    assert (config["number"], config["values"]) == (12, {"optimizer.lr": 9})
    assert begin(race) == 13, "then the best, which has 0.56"


@pytest.mark.parametrize("losses", [np.zeros((4, 5)), np.tile([[1.0], [2.0], [3.0], [4.0]], 5)])
def test_without_noise_equal_ones_stay_and_others_go_once_that_is_no_accident(losses: np.ndarray) -> None:
    expected = 8 if losses.any() else 20  # four degrees of freedom are all five seeds of the best
    assert len(run(race_of(4), losses)) == expected


def forecast(
    results: list[list[float]], running: dict[int, dict[int, list[float]]] | None = None, repeats: int = 5
) -> Forecast:
    """Of trials with three reports: half of the result twice, then the result."""
    ended = {
        configuration: {seed: [value / 2, value / 2, value] for seed, value in enumerate(own)}
        for configuration, own in enumerate(results)
    }
    return Forecast(repeats, ended, running or {})


def test_seeds_of_one_configuration_tell_how_far_another_may_come() -> None:
    best, other = [0.90, 0.94, 0.91, 0.93, 0.92], [0.88]
    predicted = forecast([best, other])
    assert predicted.predicted[0] == (5, pytest.approx(0.92), 0)
    assert predicted.predicted[1] == (1, 0.88, pytest.approx(np.var(best, ddof=1) * 4 / 5))
    expected = student.sf(0.04 / np.sqrt(np.var(best, ddof=1) * 4 / 5), 4)
    assert predicted.probability_to_pass(1, 0) == pytest.approx(expected)
    own = forecast([best, [0.88, 0.98]]).predicted[1].variance
    assert own == pytest.approx(np.var([0.88, 0.98], ddof=1) * 3 / 10), "its own variance is larger"


def test_where_seeds_are_good_or_bad_for_all_pairs_tell_more() -> None:
    results = np.array([[0.90, 0.50, 0.70], [0.87, 0.48, 0.66], [0.80, 0.41, 0.60]])
    assert forecast(results[:2].tolist()).probability_to_pass(1, 0) > 0.3, "two degrees of freedom are too few"
    rest = results - results.mean(1, keepdims=True) - results.mean(0) + results.mean()
    between = max(2 * (rest**2).sum() / 4, np.var(results[0] - results[2], ddof=1))
    expected = student.sf((results[0] - results[2]).mean() / np.sqrt(between * 2 / 15), 4)
    assert forecast(results.tolist()).probability_to_pass(2, 0) == pytest.approx(expected)


def test_a_running_trial_counts_by_what_its_configuration_gained_before() -> None:
    best, other = [0.90, 0.94, 0.91, 0.93, 0.92], [0.88, 0.86]
    # After the second report it has 0.40; two other seeds gained 0.44 and 0.43 from there. The gains vary over seeds.
    gains = (4 * np.var(np.array(best) / 2, ddof=1) + np.var([0.44, 0.43], ddof=1)) / 5
    variance = (4 * np.var(best, ddof=1) + np.var(other, ddof=1)) / 5
    assert forecast([best, other], {1: {2: [0.35, 0.40]}}).predicted[1] == (
        3,
        pytest.approx((0.88 + 0.86 + 0.40 + 0.435) / 3),
        pytest.approx(variance * 2 / 15 + gains * (1 + 1 / 2) / 9),
    )
    assert forecast([[0.9], [0.8]], {1: {1: [0.1]}}).predicted[1].seeds == 1, "one gain each has no variance"


def test_a_running_trial_stops_at_the_report_that_tells_but_not_in_the_first_seed() -> None:
    race = race_of(2)
    curves = {number: [0.9, 0.6 + 0.01 * (number % 3), 0.5 + 0.01 * (number % 3)] for number in range(5)}
    curves[5] = [0.9, 0.62, 0.52]
    for number in (0, 5, 1, 2, 3, 4):
        assert begin(race) == number
        assert [race.reported(number, {"val/loss": value}) for value in curves[number]] == [None] * 3
        race.ended(number, {"val/loss": curves[number][-1]})
    assert begin(race) == 6
    assert race.reported(6, {"val/loss": 0.9, "training_iteration": 1}) is None
    assert "over 2 seeds" in str(race.reported(6, {"val/loss": 0.8, "training_iteration": 2}))
    assert race.eliminated.keys() == {1}


@pytest.mark.parametrize("family", ["normal", "heavy"])
def test_the_winner_of_all_seeds_is_eliminated_less_often_than_the_level(family: str) -> None:
    random, kept, share = np.random.default_rng(0), 0, 0.0
    for _ in range(60):
        noise = random.normal(0, 0.01, (8, 5)) if family == "normal" else random.standard_t(3, (8, 5)) * 0.006
        losses = random.uniform(0.05, 0.2, (8, 1)) + random.normal(0, 0.02, 5) + noise
        race = race_of(8)
        share += len(run(race, losses)) / 40
        kept += int(losses.mean(1).argmin()) not in race.eliminated
    assert kept >= 57
    assert share / 60 < 0.55


def test_a_sweep_races_says_so_and_resumes(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"grid": [1e-6, 0.5, 2e-6]}}
    race = {"repeats": 2, "scheduler": {"type": "race", "level": 0.45}, "metric": "val/loss", "mode": "min"}
    outcome = sweep(searching(space, **race), tmp_path, local=True)
    table = outcome.configurations
    assert outcome.status == "finished"
    assert (table.index[0], table["n"].tolist()) == (1, [2, 1, 1])
    assert outcome.best.folder.metadata().configuration == 1
    assert "configuration 0 eliminated: " in outcome.folder.storage.read("log.txt").decode()
    # The driver dies with the second seed of the best.
    outcome.folder.update(status="interrupted", ended=None)
    outcome.trial(3).folder.storage.parent.delete("trial-0003")
    again = resume_sweep(outcome.path)
    assert again.status == "finished"
    assert [*again.trials.index] == [*outcome.trials.index]
    assert again.configurations["n"].tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"repeats": 1}, "race compares configurations over seeds"),
        ({"search": "optuna"}, "race, which needs all configurations at the start"),
        (
            {"space": {"hooks.ema.decay": {"fan_out": [0, 0.5]}}, "hooks": {"ema": {}}},
            "cannot share a training: scheduler: race",
        ),
        ({"budget": {"trials": 3}}, "sweep.budget.trials: cannot be combined with scheduler: race"),
        ({"scheduler": {"type": "race", "level": 0.6}}, "level"),
    ],
)
def test_what_does_not_go_with_a_race_is_refused(wrong: dict[str, Any], message: str) -> None:
    space = wrong.pop("space", {"optimizer.lr": {"choice": [0.1, 0.2]}})
    with pytest.raises(ConfigError, match=message):
        searching(space, **{"repeats": 3, "scheduler": "race", **wrong})
