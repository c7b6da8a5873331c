"""Results for Ray Tune of a trial, or of trials that share a training run. Used in the trial's
process."""

from typing import Any

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.active_trial import ActiveTrial, TrialState
from orchestrator.sweeps.search.search import TrialConfig, shares_training
from orchestrator.sweeps.tune.trial_data import TrialReport, make_tune_result

_COUNTERS = ("epoch", "step", "samples")
"""Counters that Tune gets besides the sweep's metrics. Tune keeps every result."""


class TrialResults:
    """Makes results for Tune."""

    def __init__(self, settings: SweepSettings, config: TrialConfig) -> None:
        self._settings = settings
        self._leader = config["number"]
        self._shares_training = shares_training(config)
        self.report: TrialReport | None = None
        """The last report; None before any."""
        self._failed: list[int] = []
        """Numbers of the trials that failed alone since the last result."""

    def keep_report(self, trial: ActiveTrial, *, count: int) -> None:
        """Keep the last report of a trial for the next result.

        Args:
            trial: A trial that has reported the sweep's metrics.
            count: How many reports Tune counts for the trial, with this one.
        """
        report = trial.reports[-1]
        metrics = {name: report[name] for name in (*_COUNTERS, *self._settings.metrics)}
        self.report = TrialReport(metrics, count, trial.training_s)

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
        """Make the result after which no trial trains. There is no report if all trials were
        interrupted before their first."""
        is_report = self.report is not None and not self._shares_training
        return self._make_result(self._leader if is_report else None, is_last=True)

    def _make_result(self, reported: int | None, *, is_last: bool) -> dict[str, Any]:
        result = make_tune_result(
            self.report,
            self._settings.metrics,
            reported=reported,
            failed=self._failed,
            is_last=is_last,
        )
        self._failed = []
        return result
