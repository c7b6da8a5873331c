"""Results for Ray Tune of a trial, or of trials that share a training run. Used in the trial's
process."""

from typing import Any

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.active_trial import ActiveTrial, TrialState
from orchestrator.sweeps.search.search import TrialConfig, shares_training
from orchestrator.sweeps.tune.trial_data import TrialReport, TrialResult

_COUNTERS = ("epoch", "step", "samples")
"""Counters that Tune gets besides the sweep's metrics. Tune keeps every result."""


class ResultMaker:
    """Makes results for Tune of reports and failures."""

    def __init__(self, settings: SweepSettings, config: TrialConfig) -> None:
        self._settings = settings
        self._leader = config["number"]
        self._shares_training = shares_training(config)
        self._report: TrialReport | None = None
        self._is_new = False
        """Whether no result has had the last report."""
        self._failed: list[int] = []
        """Numbers of the trials that failed alone since the last result."""

    @property
    def report(self) -> TrialReport | None:
        """The last report; None before any."""
        return self._report

    def restore(self, report: TrialReport | None) -> None:
        """Continue after a report that an earlier result has had."""
        self._report = report
        self._is_new = False

    def keep_failure(self, number: int) -> None:
        """Keep for the next result that one trial has failed while the others continue."""
        self._failed.append(number)

    def keep_report(self, trial: ActiveTrial, *, count: int) -> None:
        """Keep the last report of a trial for the last result.

        Args:
            trial: A trial that has reported the sweep's metrics.
            count: How many reports Tune counts for the trial, with this one.
        """
        report = trial.reports[-1]
        metrics = {name: report[name] for name in (*_COUNTERS, *self._settings.metrics)}
        self._report = TrialReport(metrics, count, trial.training_s)
        self._is_new = True

    def add_report(self, trial: ActiveTrial, *, count: int) -> dict[str, Any] | None:
        """Return the result of a trial's last report; None if it is a single trial's last one, which
        is kept for `make_last_result`.

        Args:
            trial: As in `keep_report`.
            count: As in `keep_report`.
        """
        self.keep_report(trial, count=count)
        if not self._shares_training and trial.state is not TrialState.TRAINING:
            return None
        return self._make_result(trial.number, is_last=False)

    def make_last_result(self) -> dict[str, Any]:
        """Return the result after which no trial trains. There is no report if all trials were
        interrupted before their first."""
        is_report = self._is_new and not self._shares_training
        return self._make_result(self._leader if is_report else None, is_last=True)

    def _make_result(self, reported: int | None, *, is_last: bool) -> dict[str, Any]:
        content = TrialResult(self._report, reported, tuple(self._failed), is_last)
        self._failed = []
        self._is_new = False
        metric, _ = self._settings.objectives[0]
        return content.make_tune_result(metric)
