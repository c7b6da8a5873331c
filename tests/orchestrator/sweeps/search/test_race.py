"""A race of configurations over seeds: its order, its end, and the winners that it keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import ConfigError, resume_sweep, sweep
from orchestrator.experiment.sections.sweep import Stop, SweepSettings
from orchestrator.sweeps.budget import BudgetUse
from orchestrator.sweeps.search.race import RacingTrials
from orchestrator.sweeps.stopping_rules import StoppingRules
from orchestrator.tables.trial_record import TrialRecord
from tests.orchestrator.runs.written import change
from tests.orchestrator.sweeps.search.draws import previous_trial
from tests.orchestrator.sweeps.test_in_process import searching


def settings(configurations: int, repeats: int = 5, **fields: Any) -> SweepSettings:
    space = {"optimizer.lr": {"grid": [*range(configurations)]}}
    scheduler = {"type": "race", **fields}
    common = {"metric": "val/loss", "mode": "min", "search": "grid"}
    return SweepSettings.model_validate(
        {**common, "repeats": repeats, "scheduler": scheduler, "space": space}
    )


def race_of(
    configurations: int, previous: dict[int, TrialRecord] | None = None, **options: Any
) -> RacingTrials:
    return RacingTrials(settings(configurations, **options), 0, previous or {})


def begin(race: RacingTrials) -> int | None:
    config = race.suggest()
    return config["number"] if config else None


def end(race: RacingTrials, number: int, loss: float) -> None:
    report = {"val/loss": loss}
    race.record_report(number, report)
    race.record_end(number, report)


def run(race: RacingTrials, losses: np.ndarray, max_concurrent: int = 1) -> list[list[int]]:
    """Train several trials at a time, and return those that began together; `losses` by
    configuration and seed."""
    begun = []
    while together := [
        number for _ in range(max_concurrent) if (number := begin(race)) is not None
    ]:
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


def test_race_trains_first_seeds_then_the_best_first() -> None:
    race = race_of(5)
    begun = [number for (number,) in run(race, LOSSES)]
    assert begun[:5] == [0, 5, 10, 15, 20], "the first seed of each"
    assert begun[5:8] == [6, 11, 12], "then the next of the best so far"
    assert [number for number in begun if number // 5 == 3] == [15], (
        "the worst trains with one seed only"
    )
    assert race.eliminated.keys() == {0, 3, 4}
    assert {*begun} >= {*range(5, 15)}, "the best, and one that may still be, train with all seeds"


def test_concurrent_trials_fill_the_cluster_once_the_best_configuration_is_known() -> None:
    race = race_of(5)
    first = [begin(race) or 0 for _ in range(5)]
    assert begin(race) is None, "a second seed waits for the first of all"
    assert not race.is_finished
    for number in first:
        end(race, number, LOSSES.ravel()[number])
    assert [begin(race) for _ in range(7)] == [6, 7, 8, 9, 11, 21, 1], (
        "seeds of the best, then the others, best first"
    )


def test_a_configuration_with_more_failed_trials_cannot_win() -> None:
    race = race_of(3)
    assert [begin(race) for _ in range(4)] == [0, 5, 10, None]
    race.record_end(0, None)
    race.record_report(5, {"val/loss": float("nan")})
    race.record_end(5, {"val/loss": float("nan")})
    race.record_report(10, {"val/loss": 0.5})
    race.record_report(10, {"val/loss": float("nan")})
    race.record_end(10, {"val/loss": float("nan")})
    assert begin(race) == 11
    race.record_end(11, None)
    assert [begin(race), begin(race)] == [12, 13], "the only one with a result"


def test_a_report_at_which_a_rule_stops_the_trial_counts() -> None:
    chosen = settings(2).model_copy(update={"stop": Stop(target=0.6)})
    race = RacingTrials(chosen, 0, {})
    rules = StoppingRules(chosen, race, BudgetUse(None))
    assert begin(race) == 0
    assert rules.add_report(0, 1, {"val/loss": 0.5}, 0)
    race.record_end(0, {"val/loss": 0.5})
    assert begin(race) == 5
    race.record_end(5, {"val/loss": 0.5})
    assert begin(race) == 1, "configuration 0 has not failed"


def test_reports_of_earlier_attempts_count() -> None:
    over = {
        number: previous_trial({}, "finished", [{"val/loss": float(LOSSES.ravel()[number])}])
        for number in (0, 5, 10, 15, 20, 6, 11)
    }
    race = race_of(5, {**over, 12: previous_trial({"optimizer.lr": 9}, "lost")})
    assert race.eliminated.keys() == {3}
    config = race.suggest()
    assert config is not None
    assert (config["number"], config["values"]) == (12, {"optimizer.lr": 9})
    assert begin(race) == 13, "then the best, which has 0.56"
    failed = previous_trial(
        {}, "interrupted", error="out of memory"
    )  # as `resume --failed` reads it
    race = race_of(5, {**over, 12: failed, 16: failed})
    assert [begin(race), begin(race)] == [12, 13], "configuration 3 cannot win"


@pytest.mark.parametrize("losses", [np.zeros((4, 5)), np.tile([[1.0], [2.0], [3.0], [4.0]], 5)])
def test_race_without_noise_keeps_equal_configurations(losses: np.ndarray) -> None:
    expected = 8 if losses.any() else 20  # four degrees of freedom are all five seeds of the best
    assert len(run(race_of(4), losses)) == expected


def test_a_running_trial_stops_once_another_s_end_eliminates_its_configuration() -> None:
    race = race_of(3, repeats=3)
    assert [begin(race) for _ in range(4)] == [0, 3, 6, None]
    for number, loss in ((0, 0.50), (3, 0.55), (6, 0.57)):
        end(race, number, loss)
    assert [begin(race) for _ in range(4)] == [1, 2, 4, 7]
    end(race, 1, 0.47)
    end(race, 2, 0.53)
    assert race.record_report(7, {"val/loss": 0.9}) is None
    end(race, 4, 0.55)
    assert str(race.record_report(7, {"val/loss": 0.8})).startswith(
        "configuration 2 eliminated: 0.07 behind configuration 0"
    )


@pytest.mark.parametrize("family", ["normal", "heavy"])
def test_the_winner_of_all_seeds_is_eliminated_less_often_than_the_level(family: str) -> None:
    """And a race that is resumed halfway trains the same trials as without the interruption."""
    random = np.random.default_rng(0)
    kept = 0
    share = 0.0
    for _ in range(60):
        noise = (
            random.normal(0, 0.01, (8, 5))
            if family == "normal"
            else random.standard_t(3, (8, 5)) * 0.006
        )
        losses = random.uniform(0.05, 0.2, (8, 1)) + random.normal(0, 0.02, 5) + noise
        race = race_of(8)
        begun = run(race, losses)
        share += len(begun) / 40
        previous = {
            number: previous_trial(
                {}, "finished", [{"val/loss": losses.ravel()[number]}], ended=f"{place:02}"
            )
            for place, (number,) in enumerate(begun[: len(begun) // 2])
        }
        assert run(race_of(8, dict(sorted(previous.items()))), losses) == begun[len(previous) :]
        kept += int(losses.mean(1).argmin()) not in race.eliminated
    assert kept >= 57
    assert share / 60 < 0.55


def test_a_race_runs_in_a_sweep_and_resumes(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"grid": [1e-6, 0.5, 2e-6]}}
    race = {
        "repeats": 2,
        "scheduler": {"type": "race", "level": 0.45},
        "metric": "val/loss",
        "mode": "min",
    }
    outcome = sweep(searching(space, **race), tmp_path, local=True)
    table = outcome.configurations
    assert outcome.status == "finished"
    assert (table.index[0], table["n"].tolist()) == (1, [2, 1, 1])
    assert outcome.best.folder.read_metadata().trial_settings.configuration == 1
    assert "configuration 0 eliminated: " in outcome.folder.storage.read("log.txt").decode()
    # The driver dies with the second seed of the best.
    change(outcome.folder, status="interrupted", ended=None)
    outcome.trial(3).folder.storage.parent.delete("trial-0003")
    again = resume_sweep(outcome.path)
    assert again.status == "finished"
    assert [*again.trials.index] == [*outcome.trials.index]
    assert again.configurations["n"].tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"search": "optuna"}, "cannot be optuna with scheduler: race"),
        (
            {"space": {"hooks.ema.decay": {"fan_out": [0, 0.5]}}, "hooks": {"ema": {}}},
            "cannot train once for all values: race",
        ),
        ({"budget": {"trials": 3}}, "sweep.budget.trials: cannot be combined with scheduler: race"),
        ({"scheduler": {"type": "race", "level": 0.6}}, "level"),
    ],
)
def test_settings_that_cannot_be_combined_with_a_race_are_refused(
    wrong: dict[str, Any], message: str
) -> None:
    space = wrong.pop("space", {"optimizer.lr": {"choice": [0.1, 0.2]}})
    with pytest.raises(ConfigError, match=message):
        searching(space, **{"repeats": 3, "scheduler": "race", **wrong})
