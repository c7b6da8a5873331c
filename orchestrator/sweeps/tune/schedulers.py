"""Ray Tune's schedulers for a sweep. Used in the driver."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from orchestrator.experiment.sections.schedulers.hyperband import HyperBand
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.private_api.ray_tune_schedulers import Bands, call_before_next_step
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.scores import Scores
from orchestrator.sweeps.tune.population import Population
from orchestrator.sweeps.tune.trial_data import SCORE, TrialResult
from orchestrator.tables.trial_record import TrialRecord


def make_scheduler(
    settings: SweepSettings,
    previous: Mapping[int, TrialRecord],
    history: History,
    reasons_to_stop: Mapping[int, str],
) -> TrialScheduler:
    """Make Tune's scheduler for a sweep. Its time unit is the number of reports.

    Args:
        settings: The sweep.
        previous: Trials of earlier attempts by number.
        history: Where a population records its exploits.
        reasons_to_stop: Why trials are to stop early, by their numbers; it grows as they report.
    """
    match settings.scheduler:
        case HyperBand():
            return _HyperBand(settings)
        case PBT():
            return Population(settings, previous, history)
        case _:
            return SingleStops(reasons_to_stop)


class SingleStops(FIFOScheduler):
    """Stops single trials of a shared training run, which continues without them. Tune itself can
    stop all of them only."""

    def __init__(self, reasons_to_stop: Mapping[int, str]) -> None:
        super().__init__()
        self._reasons_to_stop = reasons_to_stop

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        number = TrialResult.read(result).reported
        if number is not None and number in self._reasons_to_stop:
            reason = self._reasons_to_stop[number]
            call_before_next_step(tune_controller, trial, "stop_early", number, reason)
        return str(TrialScheduler.CONTINUE)


class _HyperBand(Bands):
    """HyperBand that compares the scores of trials instead of their results."""

    def __init__(self, settings: SweepSettings) -> None:
        # The names of the options are Tune's own.
        super().__init__(**settings.scheduler.model_dump(exclude={"type"}))
        _, mode = settings.objectives[0]
        self._sign = 1 if mode == "max" else -1
        self._scores = Scores(settings)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        scored = self._with_score(result)
        return str(super().on_trial_result(tune_controller, trial, scored))

    def _with_score(self, result: dict[str, Any]) -> dict[str, Any]:
        new_report = TrialResult.read(result).new_report
        if new_report is None:
            return result
        number, report = new_report
        score = self._scores.add(number, report.count, result[SCORE])
        return {**result, SCORE: self._sign * score}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators that Tune's schedulers draw from, and restore them at the end."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
