"""Tune's schedulers as a sweep sets them up, on trials with known scores."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from orchestrator.sweeps.tune.schedulers import SingleStops
from orchestrator.sweeps.tune.trial_data import SCORE
from tests.orchestrator.sweeps.tune.fakes import METRIC, FakeTrial, make_result, make_sweep, start

# Single stops


def test_one_of_the_trials_that_share_a_training_run_stops() -> None:
    """Tune continues with the others, and has the process stop this one."""
    scheduler = SingleStops({1: "max_reports: 1 reached"})
    calls: list[tuple[Any, ...]] = []
    tasks = SimpleNamespace(
        _schedule_trial_task=lambda trial, method, args: calls.append((method, *args))
    )
    controller = SimpleNamespace(_tune_controller=tasks)
    decisions = [
        scheduler.on_trial_result(controller, FakeTrial(0, {}), make_result({}, number))
        for number in (0, 1, None)
    ]
    assert decisions == [TrialScheduler.CONTINUE] * 3
    assert calls == [("stop_early", 1, "max_reports: 1 reached")]


# HyperBand


def test_a_trial_that_never_reported_does_not_spoil_the_score_of_its_repeats(
    tmp_path: Path,
) -> None:
    hyperband = {"type": "hyperband", "max_t": 4, "reduction_factor": 2}
    settings = make_sweep(trials=2, repeats=2, scheduler=hyperband)
    controller, scheduler = start(settings, tmp_path)
    scheduler.on_trial_result(
        controller, controller.trials[0], make_result({METRIC: math.nan}, None)
    )
    assert scheduler._with_score(make_result({METRIC: 0.5}, 1))[SCORE] == 0.5


def test_hyperband_stops_a_trial_that_pauses_after_its_bracket_has_ended(tmp_path: Path) -> None:
    """The three trials of a bracket report for the last time. By then one has paused, and one is
    still saving."""
    scheduler_settings = {"type": "hyperband", "max_t": 4, "reduction_factor": 2}
    controller, scheduler = start(make_sweep(trials=3, scheduler=scheduler_settings), tmp_path)
    saving, paused, _ = controller.trials
    paused.status = Trial.PAUSED

    decisions = [
        scheduler.on_trial_result(controller, trial, make_result({METRIC: 1.0}, number, count=4))
        for number, trial in enumerate(controller.trials)
    ]
    assert decisions == [TrialScheduler.PAUSE, TrialScheduler.PAUSE, TrialScheduler.STOP]
    assert [trial.status for trial in controller.trials] == [
        Trial.RUNNING,
        Trial.TERMINATED,
        Trial.RUNNING,
    ]

    saving.status = Trial.PAUSED
    assert scheduler.choose_trial_to_run(controller) is None
    assert saving.status == Trial.TERMINATED


def test_hyperband_cuts_each_bracket_to_its_better_half(tmp_path: Path) -> None:
    """With R = 4 and eta = 2, three brackets of 3, 3 and 4 trials are first cut at 4, 2 and 1
    reports (Li et al. 2018).

    A larger number scores better. Tune rounds half of three up, to two.
    """
    settings = make_sweep(
        trials=10, scheduler={"type": "hyperband", "max_t": 4, "reduction_factor": 2}
    )
    controller, scheduler = start(settings, tmp_path, status=Trial.PENDING)
    reports = [0] * 10

    def end(trial: FakeTrial) -> None:
        trial.status = Trial.TERMINATED
        scheduler.on_trial_remove(controller, trial)

    controller.stop_trial = end  # type: ignore[method-assign]
    while trial := scheduler.choose_trial_to_run(controller):
        trial.status = Trial.RUNNING
        decision = TrialScheduler.CONTINUE
        number = controller.trials.index(trial)
        while decision == TrialScheduler.CONTINUE:
            reports[number] += 1
            result = make_result({METRIC: number}, number, reports[number])
            decision = scheduler.on_trial_result(controller, trial, result)
        trial.status = Trial.PAUSED
        if decision == TrialScheduler.STOP:
            end(trial)
    assert reports == [4, 4, 4, 2, 4, 4, 1, 1, 2, 4]
