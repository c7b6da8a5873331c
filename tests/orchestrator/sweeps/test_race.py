"""A race of configurations over seeds: its order, and its probabilities against SciPy's and against sums on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from orchestrator import ConfigError, open_sweep, resume_sweep, sweep
from orchestrator.config.sweep import Sweep
from orchestrator.records.run_folder import RunFolder
from orchestrator.sweeps.race import Left, Race, RaceLog
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from tests.orchestrator.sweeps.test_in_process import searching


def settings(configurations: int, repeats: int = 5, **fields: Any) -> Sweep:
    return Sweep.model_validate(
        {"metric": "val/loss", "mode": "min", "search": "grid", "repeats": repeats, "scheduler": {"type": "race", **fields}, "space": {"optimizer.lr": {"grid": [*range(configurations)]}}}
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


LOSSES = np.array([[1.00, 1.10, 1.00, 1.11, 1.02], [0.50, 0.63, 0.49, 0.60, 0.50], [0.52, 0.60, 0.52, 0.62, 0.55], [3.00, 2.90, 3.10, 3.00, 3.00], [0.70, 0.82, 0.72, 0.81, 0.70]])


def test_all_begin_with_the_first_seed_and_then_the_best_go_first() -> None:
    left: list[Left] = []
    race = Race(settings(5), {}, leaves=left.append)
    begun = [number for together in run_through(race, LOSSES) for number in together]
    assert begun[:5] == [0, 5, 10, 15, 20], "the first seed of each"
    assert begun[5:8] == [6, 11, 21], "the second of the best so far"
    assert [number for number in begun if number // 5 == 3] == [15], "the worst is not run again"
    assert {one.configuration for one in left} == {0, 3, 4}
    assert {*begun} >= {*range(5, 15)}, "the best, and one that may still be, with all seeds"
    assert race.most == len(begun)


def test_a_probability_is_student_s_of_what_is_to_come() -> None:
    left: list[Left] = []
    run_through(Race(settings(5), {}, leaves=left.append), LOSSES)
    worst = next(one for one in left if one.configuration == 3)
    # It is left when the two best are through with two seeds: its own pair is one, the noise that of these two, 0.02 and -0.03 apart.
    spread = 0.05**2 / 2
    assert (worst.leader, worst.seeds, worst.behind) == (1, 1, pytest.approx(2.5))
    assert worst.probability == pytest.approx(student.sf(2.5 * np.sqrt(5 / 4 / spread), 1))
    assert worst.probability <= 0.05 / 4


def test_a_higher_level_leaves_more_and_sooner() -> None:
    begun = [sum(map(len, run_through(Race(settings(5, level=level), {}), LOSSES))) for level in (0.0001, 0.05, 0.49)]
    assert begun == sorted(begun, reverse=True)
    assert len({*begun}) == 3


def test_side_by_side_the_worse_half_waits_for_the_better() -> None:
    begun = run_through(Race(settings(5), {}), LOSSES, at_once=8)
    assert begun[:2] == [[0, 5, 10, 15, 20], [6, 11, 21]]
    race = Race(settings(5), {})
    run_through_first = [race.next_trial() for _ in range(5)]
    assert race.next_trial() is None, "a second seed waits for the first one of all"
    assert not race.is_through
    for number in run_through_first:
        race.reported(number or 0, {"val/loss": LOSSES.ravel()[number]})
        race.ended(number or 0, failed=False)
    assert [race.next_trial(), race.next_trial()] == [6, 11]
    race.reported(6, {"val/loss": 0.63})
    race.ended(6, failed=False)
    assert [race.next_trial(), race.next_trial()] == [21, None], "a place that is free is not taken by the worse half"


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
    assert [race.next_trial(), race.next_trial()] == [1, None], "the first after all, as one trial of each has failed"
    assert expected == [10, 6, 10]


def test_what_an_earlier_life_has_left_counts_and_an_ending_sweep_says_nothing() -> None:
    begun = {number: PreviousTrial({}, True, reports=({"val/loss": float(LOSSES.ravel()[number])},)) for number in (0, 5, 10, 15, 20, 6)}
    again = {11: PreviousTrial({}, False)}
    never = {number: PreviousTrial({}, True, begun=False) for number in (16, 17, 18, 19)}
    race = Race(settings(5), {**begun, **again, **never}, [Left(3, 1, 1, 2.5, 0.001)])
    assert race.most == 21
    assert [race.next_trial(), race.next_trial()] == [11, None], "what goes on is waited for"
    ending = Race(settings(5), {}, is_over=lambda: True)
    run = [ending.next_trial() for _ in range(5)]
    ending.ended(0, failed=False)
    assert (run, ending.next_trial()) == ([0, 5, 10, 15, 20], None)


@pytest.mark.parametrize("reached", [np.zeros((4, 5)), np.tile([[1.0], [2.0], [3.0], [4.0]], 5)])
def test_without_noise_equals_stay_and_others_are_left_when_that_is_no_accident(reached: np.ndarray) -> None:
    begun = [number for together in run_through(Race(settings(4), {}), reached) for number in together]
    ties = not reached.any()
    assert len(begun) == (20 if ties else 15), "a difference needs four degrees of freedom, such as three configurations with three seeds"


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
    outcome = sweep(searching(space, repeats=2, scheduler={"type": "race", "level": 0.45}, metric="val/loss", mode="min"), tmp_path, local=True)
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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"repeats": 1}, "race compares configurations over seeds"), ({"search": "optuna"}, "optuna chooses each by those before"), ({"space": {"hooks.ema.decay": {"ride": [0, 0.5]}}, "hooks": {"ema": {}}}, "cannot share a training: scheduler: race"), ({"budget": {"trials": 3}}, "budget.trials does not go with race"), ({"scheduler": {"type": "race", "level": 0.6}}, "level")],
)
def test_what_does_not_go_with_a_race_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        searching(wrong.pop("space", {"optimizer.lr": {"choice": [0.1, 0.2]}}), **{"repeats": 3, "scheduler": "race", **wrong})
