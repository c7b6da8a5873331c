"""Trials under one of Tune's own schedulers, as a reference for the rules."""

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler


class _NoneWaits:
    """A controller around trials that never wait."""

    @staticmethod
    def get_live_trials() -> list[Any]:
        return []


def count_reports(scheduler: Any, curves: list[list[float]]) -> list[int]:
    """Train one trial after another, and return after how many reports each ends.

    Tune's scheduler needs the metric `score` and the mode `max`.
    """
    return [_count_reports_of_one(scheduler, number, curve) for number, curve in enumerate(curves)]


def _count_reports_of_one(scheduler: Any, number: int, curve: list[float]) -> int:
    trial = Trial("none", trial_id=str(number), stub=True)
    scheduler.on_trial_add(_NoneWaits(), trial)
    for report, score in enumerate(curve, 1):
        result = {"score": score, TRAINING_ITERATION: report}
        if scheduler.on_trial_result(_NoneWaits(), trial, result) == TrialScheduler.STOP:
            return report
    return len(curve)
