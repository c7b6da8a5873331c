"""Results for Ray Tune of a trial, or of trials that share a training run. Used in the trial's
process."""

import math
from typing import Any

from ray.tune.result import DONE, TRAINING_ITERATION

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.active_trial import ActiveTrial, TrialState
from orchestrator.sweeps.search.search import TrialConfig, shares_training
from orchestrator.sweeps.tune.trial_data import FAILED, REPORTED, SECONDS

_COUNTERS = ("epoch", "step", "samples")
"""Counters that Tune gets besides the sweep's metrics. Tune keeps every result."""


class TrialResults:
    """Makes results for Tune. Each has the sweep's metrics, because Tune refuses one without."""

    def __init__(self, settings: SweepSettings, config: TrialConfig) -> None:
        self._settings = settings
        self._leader = config["number"]
        self._shares_training = shares_training(config)
        self.metrics: dict[str, Any] = {}
        """Metrics and counters of the last report; empty before any."""
        self._failed: list[int] = []
        """Numbers of the trials that failed alone since the last result."""

    def keep_report(self, trial: ActiveTrial, *, count: int) -> None:
        """Keep the last report of a trial for the next result.

        Args:
            trial: A trial that has reported the sweep's metrics.
            count: How many reports Tune counts for the trial, with this one.
        """
        report = trial.reports[-1]
        self.metrics = {name: report[name] for name in (*_COUNTERS, *self._settings.metrics)}
        self.metrics[SECONDS] = trial.training_s
        self.metrics[TRAINING_ITERATION] = count

    def keep_failure(self, number: int) -> None:
        """Keep for the next result that a trial has failed, without which the others continue."""
        self._failed.append(number)

    def is_due(self, trial: ActiveTrial) -> bool:
        """Return whether a report is a result of its own. The last one of a single trial is its last
        result, which follows."""
        return self._shares_training or trial.state is TrialState.TRAINING

    def make_result(self, trial: ActiveTrial) -> dict[str, Any]:
        """Make the result of the report that was kept, which is this trial's."""
        return self._make_result(trial.number, is_last=False)

    def make_last_result(self) -> dict[str, Any]:
        """Make the result after which no trial trains. Its metrics are NaN if no trial has reported
        any, because all were interrupted before."""
        is_report = self.metrics and not self._shares_training
        return self._make_result(self._leader if is_report else None, is_last=True)

    def _make_result(self, reported: int | None, *, is_last: bool) -> dict[str, Any]:
        missing = dict.fromkeys(self._settings.metrics, math.nan)
        own = {REPORTED: reported, FAILED: self._failed, DONE: is_last}
        self._failed = []
        return {**missing, **self.metrics, **own}
