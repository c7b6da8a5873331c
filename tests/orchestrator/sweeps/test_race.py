"""A race of configurations over seeds: its order, and its probabilities against SciPy's and against sums on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from orchestrator import ConfigError, UsageError, open_sweep, resume_sweep, sweep
from orchestrator.config.sections.sweep import Stop, Sweep
from orchestrator.records.run_folder import RunFolder
from orchestrator.sweeps.prognosis import Prognosis
from orchestrator.sweeps.race import Left, Race, RaceLog
from orchestrator.sweeps.results.previous_trials import PreviousTrial
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


def run_through(race: Race, reached: np.ndarray, at_once: int = 1) -> list[list[int]]:
    """Runs trials side by side, and gives those that began together; `reached` is by configuration and seed."""
    begun = []
    while True:
        together: list[int] = []
        while len(together) < at_once and (number := race.next_trial()) is not None:
            together.append(number)
        if not together:
            assert race.is_through
            return begun
        begun.append(together)
        for number in together:
            race.reported(number, {"val/loss": reached.ravel()[number]})
            race.ended(number, failed=False)


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
    left: list[Left] = []
    race = Race(settings(5), {}, leaves=left.append)
    begun = [number for together in run_through(race, LOSSES) for number in together]
    assert begun[:5] == [0, 5, 10, 15, 20], "the first seed of each"
    assert begun[5:8] == [6, 11, 12], "then the next of whichever is the best by then"
    assert [number for number in begun if number // 5 == 3] == [15], "the worst is not run again"
    assert {one.configuration for one in left} == {0, 3, 4}
    assert {*begun} >= {*range(5, 15)}, "the best, and one that may still be, with all seeds"
    assert race.most == len(begun)


def test_what_is_left_is_told_by_the_spread_that_the_best_has_shown() -> None:
    left: list[Left] = []
    run_through(Race(settings(5), {}, leaves=left.append), LOSSES)
    worst = left[0]
    # When the two best are through with two seeds each.
    variance = (0.13**2 + 0.08**2) / 2 / 2
    assert (worst.configuration, worst.leader, worst.seeds) == (3, 2, 1)
    assert worst.behind == pytest.approx(3.0 - 0.56)
    own = max(variance, 0.08**2 / 2) * (5 - 2) / (5 * 2) + variance * (5 - 1) / 5
    assert worst.probability == pytest.approx(student.sf((3.0 - 0.56) / np.sqrt(own), 2))
    assert worst.probability <= 0.05 / 4


def test_a_higher_level_leaves_more_and_sooner() -> None:
    begun = [sum(map(len, run_through(Race(settings(5, level=level), {}), LOSSES))) for level in (0.0001, 0.05, 0.49)]
    assert begun == sorted(begun, reverse=True)
    assert len({*begun}) == 3


def test_side_by_side_the_worse_half_waits_for_the_better() -> None:
    begun = run_through(Race(settings(5), {}), LOSSES, at_once=8)
    assert begun[:2] == [[0, 5, 10, 15, 20], [6, 7, 8, 9]], "the best goes on with all its seeds"
    race = Race(settings(5), {})
    run_through_first = [race.next_trial() for _ in range(5)]
    assert race.next_trial() is None, "a second seed waits for the first one of all"
    assert not race.is_through
    for number in run_through_first:
        race.reported(number or 0, {"val/loss": LOSSES.ravel()[number]})
        race.ended(number or 0, failed=False)
    assert [race.next_trial() for _ in range(5)] == [6, 7, 8, 9, None], "the others wait for the best"
    for number in (6, 7, 8, 9):
        race.reported(number, {"val/loss": 0.51})
        race.ended(number, failed=False)
    assert [race.next_trial(), race.next_trial()] == [11, None], "a place that is free is not taken by the worse half"


def test_a_trial_under_way_of_a_configuration_that_is_left_is_stopped_and_a_failed_one_is_out() -> None:
    expected: list[int] = []
    race = Race(settings(3), {}, [Left(1, 0, 1, 0.5, 0.001)], expects=expected.append)
    assert "configuration 1 will not win: 0.5 behind configuration 0 over 1 seed" in str(race.reason_to_stop(7))
    assert race.reason_to_stop(4) is None
    assert [race.next_trial(), race.next_trial(), race.next_trial()] == [0, 10, None]
    race.ended(0, failed=True)
    race.reported(10, {"val/loss": 0.5})
    race.reported(10, {"val/loss": float("nan")})
    race.ended(10, failed=False)
    assert race.next_trial() == 11
    race.ended(11, failed=True)
    assert [race.next_trial(), race.next_trial()] == [12, 13], "the only one of which a trial has ended"
    assert expected == [10, 6, 10]


def test_a_report_at_which_a_rule_ends_the_trial_counts() -> None:
    chosen = settings(2).model_copy(update={"stop": Stop(target=0.6)})
    race = Race(chosen, {})
    rules = StoppingRules(chosen, race=race)
    assert race.next_trial() == 0
    assert rules.stops("trial-0000", {"val/loss": 0.5}, 0)
    race.ended(0, failed=False)
    assert [race.next_trial(), race.most] == [5, 10], "it has not failed"


def test_what_an_earlier_life_has_left_counts_and_an_ending_sweep_says_nothing() -> None:
    begun = {
        number: PreviousTrial({}, True, reports=({"val/loss": float(LOSSES.ravel()[number])},))
        for number in (0, 5, 10, 15, 20, 6)
    }
    again = {11: PreviousTrial({}, False)}
    never = {number: PreviousTrial({}, True, begun=False) for number in (16, 17, 18, 19)}
    race = Race(settings(5), {**begun, **again, **never}, [Left(3, 1, 1, 2.5, 0.001)])
    assert race.most == 21
    assert [race.next_trial(), race.next_trial()] == [11, 12], "what goes on, and the best"
    ending = Race(settings(5), {}, is_over=lambda: True)
    run = [ending.next_trial() for _ in range(5)]
    ending.ended(0, failed=False)
    assert (run, ending.next_trial()) == ([0, 5, 10, 15, 20], None)


@pytest.mark.parametrize("reached", [np.zeros((4, 5)), np.tile([[1.0], [2.0], [3.0], [4.0]], 5)])
def test_without_noise_equals_stay_and_others_are_left_when_that_is_no_accident(reached: np.ndarray) -> None:
    begun = [number for together in run_through(Race(settings(4), {}), reached) for number in together]
    ties = not reached.any()
    assert len(begun) == (20 if ties else 8), (
        "a difference needs four degrees of freedom, such as all five seeds of the best"
    )


def told(
    reached: list[list[float]], under_way: dict[int, dict[int, list[float]]] | None = None, repeats: int = 5
) -> Prognosis:
    """Of trials that made three reports: a half, the same again, and what they reached."""
    return Prognosis(
        repeats,
        {
            one: {seed: [value / 2, value / 2, value] for seed, value in enumerate(own)}
            for one, own in enumerate(reached)
        },
        under_way or {},
    )


def test_seeds_of_one_configuration_say_how_far_another_may_come() -> None:
    best, other = [0.90, 0.94, 0.91, 0.93, 0.92], [0.88]
    found = told([best, other])
    assert found.predicted[0] == (5, pytest.approx(0.92), 0)
    assert found.predicted[1] == (1, 0.88, pytest.approx(np.var(best, ddof=1) * 4 / 5))
    assert found.passes(1, 0) == pytest.approx(student.sf(0.04 / np.sqrt(np.var(best, ddof=1) * 4 / 5), 4))
    assert told([best, [0.88, 0.98]]).predicted[1].variance == pytest.approx(np.var([0.88, 0.98], ddof=1) * 3 / 10), (
        "its own spread is larger"
    )


def test_where_seeds_are_good_or_bad_for_all_pairs_tell_more() -> None:
    reached = np.array([[0.90, 0.50, 0.70], [0.87, 0.48, 0.66], [0.80, 0.41, 0.60]])
    assert told(reached[:2].tolist()).passes(1, 0) > 0.3, "two degrees of freedom are not believed"
    rest = reached - reached.mean(1, keepdims=True) - reached.mean(0) + reached.mean()
    between = max(2 * (rest**2).sum() / 4, np.var(reached[0] - reached[2], ddof=1))
    assert told(reached.tolist()).passes(2, 0) == pytest.approx(
        student.sf((reached[0] - reached[2]).mean() / np.sqrt(between * 2 / 15), 4)
    )


def test_a_trial_under_way_is_told_by_what_its_configuration_gained_before() -> None:
    best, other = [0.90, 0.94, 0.91, 0.93, 0.92], [0.88, 0.86]
    # After its second report 0.40 is left where it had 0.44 and 0.43, which came to twice that; from seed to seed gains
    # vary.
    gains = (4 * np.var(np.array(best) / 2, ddof=1) + np.var([0.44, 0.43], ddof=1)) / 5
    spread = (4 * np.var(best, ddof=1) + np.var(other, ddof=1)) / 5
    found = told([best, other], {1: {2: [0.35, 0.40]}}).predicted[1]
    assert found == (
        3,
        pytest.approx((0.88 + 0.86 + 0.40 + 0.435) / 3),
        pytest.approx(spread * 2 / 15 + gains * (1 + 1 / 2) / 9),
    )
    assert told([[0.9], [0.8]], {1: {1: [0.1]}}).predicted[1].seeds == 1, "of one trial each no gain is known to hold"


def test_a_trial_under_way_is_stopped_at_the_report_that_tells_but_not_in_the_first_seed() -> None:
    race = Race(settings(2), {})
    curves = {
        **{number: [0.9, 0.6 + 0.01 * (number % 3), 0.5 + 0.01 * (number % 3)] for number in range(5)},
        5: [0.9, 0.62, 0.52],
        6: [0.9, 0.8, 0.75],
    }
    for number in (0, 5, 1, 2, 3, 4):
        assert race.next_trial() == number
        for value in curves[number]:
            race.reported(number, {"val/loss": value})
            assert race.reason_to_stop(number) is None
        race.ended(number, failed=False)
    assert race.next_trial() == 6
    race.reported(6, {"val/loss": curves[6][0], "training_iteration": 1})
    assert race.reason_to_stop(6) is None
    race.reported(6, {"val/loss": curves[6][1], "training_iteration": 2})
    assert "over 2 seeds" in str(race.reason_to_stop(6))
    assert not race.left.keys() - {1}


@pytest.mark.parametrize("family", ["normal", "heavy"])
def test_the_winner_of_all_seeds_is_left_less_often_than_said(family: str) -> None:
    random, kept, share = np.random.default_rng(0), 0, 0.0
    for _ in range(60):
        noise = random.normal(0, 0.01, (8, 5)) if family == "normal" else random.standard_t(3, (8, 5)) * 0.006
        reached = random.uniform(0.05, 0.2, (8, 1)) + random.normal(0, 0.02, 5) + noise
        race = Race(settings(8), {})
        share += sum(map(len, run_through(race, reached))) / 40
        kept += int(reached.mean(1).argmin()) not in race.left
    assert kept >= 57
    assert share / 60 < 0.55


def test_a_sweep_races_says_so_and_goes_on_where_it_was(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"grid": [1e-6, 0.5, 2e-6]}}
    outcome = sweep(
        searching(space, repeats=2, scheduler={"type": "race", "level": 0.45}, metric="val/loss", mode="min"),
        tmp_path,
        local=True,
    )
    told, log = outcome.folder.metadata(), RaceLog(RunFolder(outcome.path)).read()
    assert outcome.status == "finished"
    assert told.sweep.trials == len(outcome.trials) < 6
    assert 1 not in {one.configuration for one in log}
    found = outcome.configurations
    assert (found.index[0], found["n"].iloc[0]) == (1, 2)
    assert outcome.best.folder.metadata().configuration == 1
    assert all(found.loc[one.configuration, "n"] < 2 for one in log)
    assert f"{log[0]}" in RunFolder(outcome.path).storage.read("log.txt").decode()
    # Its driver dies with the second seed of the best: what was left stays so.
    RunFolder(outcome.path).update(status="interrupted", ended=None)
    outcome.trial(3).folder.storage.parent.delete("trial-0003")
    again = resume_sweep(outcome.path)
    assert again.status == "finished"
    assert [*again.trials.index] == [*outcome.trials.index]
    assert RaceLog(RunFolder(outcome.path)).read() == log
    assert open_sweep(outcome.path).configurations["n"].tolist() == found["n"].tolist()
    # Nothing is begun where a failed trial is not to be tried again, or not needed.
    again.trial(3).folder.update(status="failed")
    with pytest.raises(
        UsageError,
        match=f"all {len(again.trials)} trials of .* are over; .* with --failed, the 1 that failed is tried again",
    ):
        resume_sweep(outcome.path)
    again.trial(3).folder.update(status="finished")
    again.trial(2 * log[0].configuration).folder.update(status="failed")
    with pytest.raises(UsageError, match="the race has left the configurations of the 1 that failed"):
        resume_sweep(outcome.path, failed=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"repeats": 1}, "race compares configurations over seeds"),
        ({"search": "optuna"}, "optuna chooses each by those before"),
        (
            {"space": {"hooks.ema.decay": {"ride": [0, 0.5]}}, "hooks": {"ema": {}}},
            "cannot share a training: scheduler: race",
        ),
        ({"budget": {"trials": 3}}, "budget.trials does not go with race"),
        ({"scheduler": {"type": "race", "level": 0.6}}, "level"),
    ],
)
def test_what_does_not_go_with_a_race_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        searching(
            wrong.pop("space", {"optimizer.lr": {"choice": [0.1, 0.2]}}), **{"repeats": 3, "scheduler": "race", **wrong}
        )
