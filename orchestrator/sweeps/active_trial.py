"""A trial that trains, and how it ends.

This code runs in the driver, or under Tune in the trial's process.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from time import monotonic
from typing import Any, Self

from orchestrator.disk.attempts import measure_training_seconds
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import Status
from orchestrator.engines.failure_record import record_failure
from orchestrator.engines.lifecycle import find_outcome
from orchestrator.errors import HookyardError
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.report import Report
from orchestrator.sweeps.begin_trial import begin_trial
from orchestrator.sweeps.metric_monitor import MetricMonitor


class TrialState(Enum):
    """How far a trial has come. It passes through the states in this order, but a failure ends it
    at once."""

    TRAINING = "training"
    ENDING = "ending"
    """Its last report is the end, which its folder records once its files are closed."""
    ENDED = "ended"
    """Its folder records the end, which may be a failure."""


class ActiveTrial:
    """A trial that has begun.

    Attributes:
        number: Number of the trial in its sweep.
        values: Its values by dotted path.
        folder: Its run folder.
        source: Its experiment as written.
    """

    def __init__(
        self,
        *,
        number: int,
        values: Mapping[str, Any],
        folder: RunFolder,
        resolved: ResolvedExperiment,
        settings: SweepSettings,
    ) -> None:
        self.number = number
        self.values = values
        self.folder = folder
        self.source: ExperimentSource = resolved.experiment.source
        self._resolved: ResolvedExperiment | None = resolved
        """Resolved experiment; None once it is taken."""
        self._settings = settings
        self._reports = self._read_reports()
        """Valid reports with the sweep's metrics."""
        self._metric_monitor = MetricMonitor(settings, resolved, folder, seen=bool(self._reports))
        earlier_s = measure_training_seconds(folder.read_attempts(), folder.read_reports())
        self._started_at = monotonic() - earlier_s
        self._last: Report | None = None
        self._reason_to_stop: str | None = None
        self._state = TrialState.TRAINING
        self._status: Status = "running"

    @classmethod
    def begin(
        cls,
        location: str,
        number: int,
        source: ExperimentSource,
        settings: SweepSettings,
        values: Mapping[str, Any],
    ) -> Self:
        """Begin or continue a trial, as `begin_trial` does; raises ConfigError as it does."""
        resolved, folder = begin_trial(location, number, source, settings, values)
        return cls(
            number=number, values=values, folder=folder, resolved=resolved, settings=settings
        )

    @property
    def state(self) -> TrialState:
        """How far the trial has come."""
        return self._state

    @property
    def status(self) -> Status:
        """Status that its folder records."""
        return self._status

    @property
    def reports(self) -> Sequence[Mapping[str, Any]]:
        """Reports that contain the sweep's metrics, also of earlier attempts."""
        return self._reports

    @property
    def last(self) -> Report | None:
        """Last report of this attempt, with or without the sweep's metrics."""
        return self._last

    @property
    def training_s(self) -> float:
        """Training time in seconds, including earlier attempts."""
        return monotonic() - self._started_at

    def take_resolved(self) -> ResolvedExperiment | None:
        """Return the resolved experiment, but only once, because its task and hooks have state."""
        resolved = self._resolved
        self._resolved = None
        return resolved

    def begin_attempt(self) -> None:
        """Begin another attempt, which has not reported yet."""
        assert self._state is TrialState.TRAINING
        self._last = None

    def add_report(self, report: Report) -> bool:
        """Add a report, and return whether it has the sweep's metrics. Raises MetricMissing if none
        ever will, and RunError if it is the last and none has had them."""
        is_first = self._last is None
        self._last = report
        if report.is_final:
            self._state = TrialState.ENDING
        has_metrics = self._metric_monitor.check_report(report)
        if is_first:
            # The attempt has replaced the reports after the checkpoint from which it continues. The
            # folder already holds the new one.
            self._reports = self._read_reports()
        elif has_metrics:
            self._reports.append(report.metrics)
        if report.is_final:
            self._check_reports()
        return has_metrics

    def stop(self, reason: str) -> None:
        """Let the trial end early at its last report. A trial that ends there by itself keeps its own
        outcome. An interrupted one is stopped, because a resume would otherwise continue it."""
        assert self._last is not None
        is_resumable = self._state is TrialState.ENDING and self._last.interrupted
        if self._state is TrialState.TRAINING or is_resumable:
            self._reason_to_stop = reason
            self._state = TrialState.ENDING

    def record_end(self) -> None:
        """Record the end of the trial in its folder: that it was stopped, or what its last report
        says. Raises RunError if no report had the sweep's metrics."""
        self._check_not_ended()
        status, reasons = self._find_outcome()
        self.folder.run_file.end(status, stopped=reasons)
        self._set_ended(status)

    def record_failure(self, error: Exception) -> HookyardError:
        """Record in its folder that the trial has failed; return the error to raise for it."""
        self._check_not_ended()
        self._set_ended("failed")
        return record_failure(self.folder, error)

    def _check_not_ended(self) -> None:
        assert self._state is not TrialState.ENDED, f"trial {self.number} is {self._status}"

    def _set_ended(self, status: Status) -> None:
        self._state = TrialState.ENDED
        self._status = status

    def _find_outcome(self) -> tuple[Status, Sequence[str]]:
        if self._reason_to_stop is not None:
            return "stopped", [self._reason_to_stop]
        self._check_reports()
        return find_outcome(self._last)

    def _check_reports(self) -> None:
        """Raise RunError if the trial ends without a report that has the sweep's metrics. An
        interrupted one may make it later."""
        last = self._last
        if not self._reports and not (last and last.interrupted):
            raise self._metric_monitor.make_missing_metrics_error(last)

    def _read_reports(self) -> list[Mapping[str, Any]]:
        """Return the trial's valid reports that have all of the sweep's metrics, oldest first."""
        reports = self.folder.read_current_reports()
        return [report for report in reports if self._settings.has_metrics(report)]


def list_training(trials: Iterable[ActiveTrial]) -> list[ActiveTrial]:
    """Return the trials that have not come to their end."""
    return [trial for trial in trials if trial.state is TrialState.TRAINING]
