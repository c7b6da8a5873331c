"""Ray Tune's schedulers for a sweep. Used in the driver."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from orchestrator.experiment.sections.schedulers.hyperband import HyperBand
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.private_api.ray_tune_schedulers import Bands, call_before_next_step
from orchestrator.sweeps.pruner import Pruner
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.scores import Scores
from orchestrator.sweeps.stopping_rules import describe_scheduler_stop
from orchestrator.sweeps.tune.population import Population
from orchestrator.sweeps.tune.trial_data import REPORTED, TRIAL
from orchestrator.tables.trial_record import TrialRecord


def make_scheduler(
    settings: SweepSettings,
    previous: Mapping[int, TrialRecord],
    reasons: Mapping[int, str],
    history: History,
) -> TrialScheduler:
    """Make Tune's scheduler for a sweep. Its time unit is the number of reports.

    Args:
        settings: The sweep.
        previous: Trials of earlier attempts by number.
        reasons: Reasons of the stopping rules to stop a trial, by its number; changes as they do.
        history: Where a population records its exploits.
    """
    match settings.scheduler:
        case HyperBand():
            return _HyperBand(settings)
        case PBT():
            return Population(settings, previous, history)
        case _:
            return SingleStops(Pruner.make(settings, previous), settings, reasons)


class SingleStops(FIFOScheduler):
    """Stops single trials early, also those of a shared training run, which continues
    without them."""

    def __init__(
        self, pruner: Pruner | None, settings: SweepSettings, reasons: Mapping[int, str]
    ) -> None:
        super().__init__()
        self._pruner = pruner
        self._settings = settings
        self._reasons = reasons

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if REPORTED not in result:
            stops = self._should_stop(trial.config[TRIAL]["number"], result)
            return str(TrialScheduler.STOP if stops else TrialScheduler.CONTINUE)

        number = result[REPORTED]
        reason = None
        if self._should_stop(number, result):
            reason = describe_scheduler_stop(self._settings, result[TRAINING_ITERATION])
        reason = self._reasons.get(number, reason)
        if reason:
            call_before_next_step(tune_controller, trial, "stop_early", number, reason)
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Learn the last result of a trial, which Tune passes nowhere else."""
        if REPORTED not in result and self._settings.has_metrics(result):
            self._should_stop(trial.config[TRIAL]["number"], result)

    def _should_stop(self, number: int, result: Mapping[str, Any]) -> bool:
        return self._pruner is not None and self._pruner.should_stop(
            number, result[TRAINING_ITERATION], result
        )


class _HyperBand(Bands):
    """HyperBand that compares the scores of trials instead of their results."""

    def __init__(self, settings: SweepSettings) -> None:
        # The names of the options are Tune's own.
        super().__init__(**settings.scheduler.model_dump(exclude={"type"}))
        self._metric_name, mode = settings.objectives[0]
        self._sign = 1 if mode == "max" else -1
        self._scores = Scores(settings)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        scored = self._with_score(trial, result)
        return str(super().on_trial_result(tune_controller, trial, scored))

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        super().on_trial_complete(tune_controller, trial, self._with_score(trial, result))

    def _with_score(self, trial: Any, result: dict[str, Any]) -> dict[str, Any]:
        has_report = self._metric_name in result and REPORTED not in result
        if not has_report:
            return result
        score = self._scores.add(
            trial.config[TRIAL]["number"], result[TRAINING_ITERATION], result[self._metric_name]
        )
        return {**result, self._metric_name: self._sign * score}


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
