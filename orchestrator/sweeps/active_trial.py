"""A trial that trains, and how it ends.

This code runs in the driver, or under Tune in the trial's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from time import monotonic
from typing import Any

from orchestrator.disk.metadata import seconds_at
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.lifecycle import find_outcome
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.report import Report
from orchestrator.sweeps.metric_monitor import MetricMonitor
from orchestrator.sweeps.trials import begin_trial


class TrialState(Enum):
    """State of a trial that has started."""

    TRAINING = auto()
    ENDING = auto()
    """It ends at its last report. Its folder gets the outcome once its files are closed."""
    RECORDED = auto()
    """Its folder has the outcome."""
    FAILED = auto()


@dataclass(frozen=True)
class Outcome:
    """How a trial ended that has not failed."""

    status: str
    reasons: Sequence[str]
    """Why it stopped early; empty if it finished."""


@dataclass
class ActiveTrial:
    """A trial that has started. Its state changes only by `end`, `stop`, `record` and `fail`."""

    number: int
    values: Mapping[str, Any]
    resolved: ResolvedExperiment | None
    """Resolved experiment; None once it is taken."""
    source: ExperimentSource
    folder: RunFolder
    settings: SweepSettings
    metric_monitor: MetricMonitor
    reports: list[Mapping[str, Any]]
    """Reports that contain the sweep's metrics."""
    started_at: float
    """`monotonic()` at its start, minus the training time of earlier attempts."""
    last: Report | None = None
    """Last report of this attempt, with or without the sweep's metrics."""
    state: TrialState = TrialState.TRAINING
    outcome: Outcome | None = None
    """None until the trial ends, and if it fails."""

    @classmethod
    def begin(
        cls,
        location: str,
        number: int,
        source: ExperimentSource,
        settings: SweepSettings,
        values: Mapping[str, Any],
    ) -> ActiveTrial:
        """Begin or continue a trial, as `begin_trial` does, and raise its ConfigError."""
        resolved, folder = begin_trial(location, number, source, settings, values)
        reports = _read_reports_with_metrics(folder, settings)
        return cls(
            number,
            values,
            resolved,
            resolved.experiment.source,
            folder,
            settings,
            MetricMonitor(settings, resolved, folder, seen=bool(reports)),
            reports,
            started_at=monotonic() - _compute_training_seconds(folder),
        )

    @property
    def seconds(self) -> float:
        """Training time in seconds, including earlier attempts."""
        return monotonic() - self.started_at

    @property
    def has_ended(self) -> bool:
        return self.state in (TrialState.RECORDED, TrialState.FAILED)

    def take_resolved(self) -> ResolvedExperiment | None:
        """Return the resolved experiment, but only once, because its task and hooks have state."""
        resolved = self.resolved
        self.resolved = None
        return resolved

    def begin_attempt(self) -> None:
        """Begin another attempt, which has not reported yet."""
        self.last = None

    def add_report(self, report: Report) -> bool:
        """Add a report, and return whether it has the sweep's metrics. Raises MetricMissing if none
        ever will."""
        is_first = self.last is None
        self.last = report
        has_metrics = self.metric_monitor.has_metrics(report)
        if is_first:
            # The attempt has replaced the reports after the checkpoint from which it continues. The
            # folder already holds the new one.
            self.reports = _read_reports_with_metrics(self.folder, self.settings)
        elif has_metrics:
            self.reports.append(report.metrics)
        return has_metrics

    def end(self) -> None:
        """End the trial as its last report says, unless it has stopped; `record` follows. Raises
        RunError if no report had the sweep's metrics."""
        if self.state is not TrialState.TRAINING:
            return
        last = self.last
        if not self.reports and not (last and last.interrupted):
            raise self.metric_monitor.make_missing_metrics_error(last)
        self._end(Outcome(*find_outcome(last)))

    def stop(self, reason: str) -> None:
        """End the trial early at its last report, even if that says that it was interrupted."""
        assert self.last is not None
        if self.state is TrialState.TRAINING or self.last.interrupted:
            self._end(Outcome("stopped", [reason]))

    def _end(self, outcome: Outcome) -> None:
        self.state = TrialState.ENDING
        self.outcome = outcome

    def record(self) -> None:
        """Record the outcome of an ending trial in its folder."""
        assert self.outcome is not None
        self.folder.end(self.outcome.status, stopped=self.outcome.reasons)
        self.state = TrialState.RECORDED

    def fail(self) -> None:
        """Mark the trial as failed; the caller records the error in its folder."""
        assert self.state is not TrialState.RECORDED
        self.state = TrialState.FAILED
        self.outcome = None


def _read_reports_with_metrics(
    folder: RunFolder, settings: SweepSettings
) -> list[Mapping[str, Any]]:
    """Return a trial's valid reports that have all of the sweep's metrics, oldest first."""
    return [report for report in folder.read_current_reports() if settings.has_metrics(report)]


def _compute_training_seconds(folder: RunFolder) -> float:
    """Return a trial's training time in seconds: from the start of each attempt to its last
    report."""
    ends = {
        line["attempt"]: seconds_at(line["time"])
        for line in folder.read_reports()
        if "time" in line
    }
    durations = [
        max(0.0, ends[attempt.number] - seconds_at(attempt.started))
        for attempt in folder.read_attempts()
        if attempt.started and attempt.number in ends
    ]
    return sum(durations, start=0.0)
