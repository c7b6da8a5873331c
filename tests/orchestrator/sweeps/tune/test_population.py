"""A population under Ray Tune, of trials with known scores."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_name
from orchestrator.sweeps.results.population import Exploit, History
from orchestrator.sweeps.tune.schedulers import seeded
from orchestrator.sweeps.tune.trial_data import TRIAL
from tests.orchestrator.sweeps.search.draws import previous_trial
from tests.orchestrator.sweeps.tune.fakes import (
    METRIC,
    FakeController,
    FakeTrial,
    make_result,
    make_sweep,
    start,
)

DECAY = "hooks.ema.decay"


def result_at(score: float, epoch: int) -> dict[str, Any]:
    return make_result({METRIC: score, "epoch": epoch - 1, "step": 10 * epoch}, count=epoch)


def read_exploits(folder: Path) -> list[Exploit]:
    return History(RunFolder(folder)).read()


def measure_distance(trial: FakeTrial) -> float:
    return abs(float(trial.config[TRIAL]["values"][DECAY]) - 0.7)


def train_epoch(
    scheduler: Any, controller: FakeController, epoch: int, diverged: int | None = None
) -> None:
    """Every trial reports its distance from 0.7, and waits for the others.

    At the last report Tune compares the population.
    """
    for number, trial in enumerate(controller.trials):
        score = math.inf if number == diverged else -measure_distance(trial)
        decision = scheduler.on_trial_result(controller, trial, result_at(score, epoch))
        assert decision in (TrialScheduler.PAUSE, TrialScheduler.NOOP)
        trial.status = Trial.PAUSED
    for trial in controller.trials:
        trial.status = Trial.RUNNING


@pytest.mark.parametrize("seed", range(3))
def test_population_moves_decay_to_the_optimum_within_bounds(seed: int, tmp_path: Path) -> None:
    """All begin at 0.3 or less, so copying alone leads nowhere."""
    settings = make_sweep(
        trials=8,
        seed=seed,
        scheduler={"type": "pbt", "mutate": [DECAY]},
        space={DECAY: {"uniform": [0.05, 0.75]}},
        points=[{DECAY: value} for value in np.linspace(0.05, 0.3, 8).tolist()],
    )
    controller, scheduler = start(settings, tmp_path)

    with seeded(settings.seed):
        for epoch in range(1, 16):
            train_epoch(scheduler, controller, epoch)

    exploits = read_exploits(tmp_path)
    assert len(exploits) >= 14 * 2
    assert all(0.05 <= exploit.after[DECAY] <= 0.75 for exploit in exploits)
    assert all(exploit.source_score >= exploit.score for exploit in exploits)
    assert np.median([measure_distance(trial) for trial in controller.trials]) < 0.1


def test_a_diverged_trial_copies_another(tmp_path: Path) -> None:
    settings = make_sweep(trials=4, scheduler="pbt", space={DECAY: {"uniform": [0.1, 0.9]}})
    controller, scheduler = start(settings, tmp_path)

    for epoch in range(1, 5):
        train_epoch(scheduler, controller, epoch, diverged=2 if epoch == 2 else None)

    exploits = read_exploits(tmp_path)
    assert [exploit.report for exploit in exploits] == [1, 2, 3, 4]
    assert exploits[1].trial == "trial-0002"
    assert [math.isnan(exploit.score) for exploit in exploits] == [False, True, False, False]
    assert not any(math.isnan(exploit.source_score) for exploit in exploits)


@pytest.mark.parametrize("reports", [(0, 0, 0), (3, 1, 0)])
def test_a_failed_trial_is_not_waited_for(reports: tuple[int, ...], tmp_path: Path) -> None:
    """Two of three trials wait at the next comparison when the third, behind them, fails. Some may
    be resumed."""
    settings = make_sweep(trials=3, scheduler={"type": "pbt", "perturbation_interval": 2})
    previous = {
        number: previous_trial({}, "lost", [{METRIC: 1.0}] * count, name=trial_name(number))
        for number, count in enumerate(reports)
    }
    controller, scheduler = start(settings, tmp_path, previous)
    next_comparison = max(reports) // 2 * 2 + 2
    *waiting, failing = controller.trials

    for trial, begun in zip(waiting, reports, strict=False):
        for count in range(begun + 1, next_comparison + 1):
            decision = scheduler.on_trial_result(controller, trial, result_at(1 / count, count))
        assert decision == TrialScheduler.PAUSE
        trial.status = Trial.PAUSED
    scheduler.on_trial_result(controller, failing, result_at(1.0, 1))
    assert scheduler.choose_trial_to_run(controller) is None
    assert read_exploits(tmp_path) == []

    failing.status = Trial.ERROR
    controller.trials.remove(failing)
    assert scheduler.choose_trial_to_run(controller) in waiting
    assert len(read_exploits(tmp_path)) == 1


def test_the_worst_trial_copies_the_best_and_multiplies_its_value(tmp_path: Path) -> None:
    """Of four trials the worst, 0.2 with score 1, continues from the best, 0.5 with score 4, at 0.8
    or 1.2 times 0.5. That happens after the second and the fourth report."""
    settings = make_sweep(
        trials=4,
        scheduler={"type": "pbt", "perturbation_interval": 2, "resample_probability": 0},
        space={DECAY: {"uniform": [0.1, 0.9]}},
        points=[{DECAY: value} for value in (0.4, 0.2, 0.5, 0.3)],
    )
    controller, scheduler = start(settings, tmp_path)

    for epoch in range(1, 5):
        for score, trial in zip([3, 1, 4, 2], controller.trials, strict=True):
            scheduler.on_trial_result(controller, trial, result_at(score, epoch))
            trial.status = Trial.RUNNING

    exploits = read_exploits(tmp_path)
    assert [(exploit.trial, exploit.source) for exploit in exploits] == [
        ("trial-0001", "trial-0002")
    ] * 2
    assert [(exploit.report, exploit.score) for exploit in exploits] == [(2, 1), (4, 1)]
    assert {round(exploit.after[DECAY], 9) for exploit in exploits} <= {0.4, 0.6}
    values = [trial.config[TRIAL]["values"][DECAY] for trial in controller.trials]
    assert values == [0.4, exploits[-1].after[DECAY], 0.5, 0.3]
