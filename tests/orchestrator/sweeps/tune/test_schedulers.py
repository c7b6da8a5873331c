"""Tune's schedulers as a sweep sets them up, on trials with known scores."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from orchestrator.sweeps.pruner import Pruner
from orchestrator.sweeps.tune.schedulers import SingleStops
from orchestrator.sweeps.tune.trial_data import REPORTED, TRIAL
from tests.orchestrator.sweeps.tune.fakes import METRIC, FakeTrial, make_sweep, start


def make_result(score: float, count: int = 1, **more: Any) -> dict[str, Any]:
    return {METRIC: score, TRAINING_ITERATION: count, **more}


# Single stops


def test_a_trial_below_the_median_of_a_rung_stops(tmp_path: Path) -> None:
    controller, scheduler = start(make_sweep(trials=3, scheduler="asha"), tmp_path)
    decisions = [
        scheduler.on_trial_result(controller, trial, make_result(score))
        for trial, score in zip(controller.trials, [2, 1, 3], strict=True)
    ]
    assert decisions == [TrialScheduler.CONTINUE, TrialScheduler.STOP, TrialScheduler.CONTINUE]


def test_the_last_result_of_a_trial_counts_for_the_others(tmp_path: Path) -> None:
    """Tune passes it to `on_trial_complete` alone."""
    controller, scheduler = start(make_sweep(trials=2, scheduler="asha"), tmp_path)
    first, second = controller.trials
    scheduler.on_trial_complete(controller, first, make_result(2))
    decision = scheduler.on_trial_result(controller, second, make_result(1))
    assert decision == TrialScheduler.STOP


def test_a_trial_that_never_reported_is_no_rival(tmp_path: Path) -> None:
    controller, scheduler = start(make_sweep(trials=2, scheduler="asha"), tmp_path)
    scheduler.on_trial_complete(controller, controller.trials[0], {})
    decision = scheduler.on_trial_result(controller, controller.trials[1], make_result(1))
    assert decision == TrialScheduler.CONTINUE


class SharedTraining:
    """Two trials that share a training run, and the calls of their process."""

    def __init__(self, scheduler: str, reasons: dict[int, str]) -> None:
        settings = make_sweep(trials=2, scheduler=scheduler)
        self.scheduler = SingleStops(Pruner.make(settings, {}), settings, reasons)
        self.trial = FakeTrial(0, {})
        self.trial.config[TRIAL]["followers"] = [{"number": 1, "values": {}}]
        self.calls: list[tuple[Any, ...]] = []
        tasks = SimpleNamespace(_schedule_trial_task=self._record_call)
        self.controller = SimpleNamespace(_tune_controller=tasks)

    def _record_call(self, trial: Any, method: str, args: tuple[Any, ...]) -> None:
        self.calls.append((method, *args))

    def report(self, number: int, score: float) -> str:
        result = make_result(score, **{REPORTED: number})
        return self.scheduler.on_trial_result(self.controller, self.trial, result)


def test_one_of_the_trials_that_share_a_training_run_stops() -> None:
    shared = SharedTraining("asha", {})
    decisions = [shared.report(0, 2.0), shared.report(1, 1.0)]
    assert decisions == [TrialScheduler.CONTINUE] * 2
    assert shared.calls == [("stop_early", 1, "asha ended the trial after report 1")]


@pytest.mark.parametrize("scheduler", ["asha", "fifo"])
def test_the_stopping_rules_stop_one_of_them_too(scheduler: str) -> None:
    shared = SharedTraining(scheduler, {0: "max_reports: 1 reached"})
    shared.report(0, 2.0)
    assert shared.calls == [("stop_early", 0, "max_reports: 1 reached")]


# HyperBand


def test_a_trial_that_never_reported_does_not_spoil_the_score_of_its_repeats(
    tmp_path: Path,
) -> None:
    hyperband = {"type": "hyperband", "max_t": 4, "reduction_factor": 2}
    settings = make_sweep(trials=2, repeats=2, scheduler=hyperband)
    controller, scheduler = start(settings, tmp_path)
    scheduler.on_trial_complete(
        controller, controller.trials[0], make_result(math.nan, **{REPORTED: None})
    )
    assert scheduler._with_score(FakeTrial(1, {}), make_result(0.5))[METRIC] == 0.5


def test_hyperband_stops_a_trial_that_pauses_after_its_bracket_has_ended(tmp_path: Path) -> None:
    """The three trials of a bracket report for the last time. By then one has paused, and one is
    still saving."""
    scheduler_settings = {"type": "hyperband", "max_t": 4, "reduction_factor": 2}
    controller, scheduler = start(make_sweep(trials=3, scheduler=scheduler_settings), tmp_path)
    saving, paused, _ = controller.trials
    paused.status = Trial.PAUSED

    decisions = [
        scheduler.on_trial_result(controller, trial, make_result(1.0, 4))
        for trial in controller.trials
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
            result = make_result(number, reports[number])
            decision = scheduler.on_trial_result(controller, trial, result)
        trial.status = Trial.PAUSED
        if decision == TrialScheduler.STOP:
            end(trial)
    assert reports == [4, 4, 4, 2, 4, 4, 1, 1, 2, 4]
