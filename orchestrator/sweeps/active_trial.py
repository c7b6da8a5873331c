"""A trial that trains, and how it ends.

This code runs in the driver, or under Tune in the trial's process.
"""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Self

from orchestrator.disk.attempts import measure_training_seconds
from orchestrator.disk.metadata import Status
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.lifecycle import find_outcome
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.report import Report
from orchestrator.sweeps.begin_trial import begin_trial
from orchestrator.sweeps.metric_monitor import MetricMonitor


class ActiveTrial:
    """A trial that has started. Its status is `running` until `end` or `fail` sets it, once.

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
        self._metric_monitor = MetricMonitor(settings, resolved, folder, seen=bool(self._reports))
        earlier_s = measure_training_seconds(folder.read_attempts(), folder.read_reports())
        self._started_at = monotonic() - earlier_s
        self._last: Report | None = None
        self._reason_to_stop: str | None = None
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
    def reports(self) -> Sequence[Mapping[str, Any]]:
        """Reports that contain the sweep's metrics, also of earlier attempts."""
        return self._reports

    @property
    def last(self) -> Report | None:
        """Last report of this attempt, with or without the sweep's metrics."""
        return self._last

    @property
    def status(self) -> Status:
        """Status that its folder has, or gets from the caller of `fail`."""
        return self._status

    @property
    def training_s(self) -> float:
        """Training time in seconds, including earlier attempts."""
        return monotonic() - self._started_at

    @property
    def has_ended(self) -> bool:
        return self._status != "running"

    @property
    def is_at_end(self) -> bool:
        """True if it has ended, or ends at its last report, once its files are closed."""
        is_final = self._last is not None and self._last.is_final
        return self.has_ended or is_final or self._reason_to_stop is not None

    def take_resolved(self) -> ResolvedExperiment | None:
        """Return the resolved experiment, but only once, because its task and hooks have state."""
        resolved = self._resolved
        self._resolved = None
        return resolved

    def begin_attempt(self) -> None:
        """Begin another attempt, which has not reported yet."""
        assert not self.is_at_end
        self._last = None

    def add_report(self, report: Report) -> bool:
        """Add a report, and return whether it has the sweep's metrics. Raises MetricMissing if none
        ever will, and RunError if it is the last and none has had them."""
        is_first = self._last is None
        self._last = report
        has_metrics = self._metric_monitor.has_metrics(report)
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
        """Let the trial end early at its last report, unless it ends there by itself. A trial that
        was interrupted there would be resumed, and so it can stop."""
        assert self._last is not None
        if not self.is_at_end or (self._last.interrupted and not self.has_ended):
            self._reason_to_stop = reason

    def end(self) -> None:
        """Record the end of the trial in its folder: that it was stopped, or what its last report
        says. Raises RunError if no report had the sweep's metrics."""
        status, reasons = self._find_outcome()
        self.folder.end(status, stopped=reasons)
        self._leave_running(status)

    def fail(self) -> None:
        """Mark the trial as failed; the caller records the error in its folder."""
        self._leave_running("failed")

    def _leave_running(self, status: Status) -> None:
        assert self._status == "running", f"trial {self.number}: {self._status} -> {status}"
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
