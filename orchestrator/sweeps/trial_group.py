"""Trials that train, and groups of trials that share one training run.

This code runs in the driver, or under Tune in the trial's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from orchestrator.disk.metadata import seconds_at
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.lifecycle import Lifecycle, compact_rows, find_outcome
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.loop.report import Report
from orchestrator.loop.sharing.failed_run import find_failed_run
from orchestrator.sweeps.metric_monitor import MetricMonitor
from orchestrator.sweeps.trials import begin_trial

if TYPE_CHECKING:
    from orchestrator.engines.lifecycle import Engine


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


@dataclass
class ActiveTrial:
    """A trial that has started."""

    number: int
    values: Mapping[str, Any]
    resolved: ResolvedExperiment | None
    """Resolved experiment; None once it is taken."""
    source: ExperimentSource
    folder: RunFolder
    metric_monitor: MetricMonitor
    reports: list[Mapping[str, Any]]
    """Reports that contain the sweep's metrics."""
    started_at: float
    """`monotonic()` at its start, minus the training time of earlier attempts."""
    last: Report | None = None
    outcome: tuple[str, Sequence[str]] | None = None
    """Final status, and the reasons why the trial stopped; None while it trains, and if it
    failed."""
    is_recorded: bool = False
    """Whether its folder has the outcome."""
    has_failed: bool = False

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
        return self.is_recorded or self.has_failed

    def take_resolved(self) -> ResolvedExperiment | None:
        """Return the resolved experiment, but only once, because its task and hooks have state."""
        resolved = self.resolved
        self.resolved = None
        return resolved


class TrialGroup:
    """Trials that share one training run. The first is the leader.

    A trial's end is recorded at the next report: by then its files are closed.
    """

    def __init__(
        self,
        engine: Engine,
        trials: Sequence[ActiveTrial],
        settings: SweepSettings,
        checkpoint: str | None = None,
    ) -> None:
        self._trials = trials
        self._settings = settings
        sweep = settings.model_dump(mode="json")
        leader, *followers = (
            Assignment(trial.source, trial.folder.location, checkpoint=checkpoint, sweep=sweep)
            for trial in trials
        )
        leader = replace(leader, followers=tuple(followers))
        self._lifecycle = Lifecycle(engine, leader, trials[0].take_resolved())
        self._trials_without_report = list(trials)
        self._current: ActiveTrial | None = None

    def next(self) -> ActiveTrial | None:
        """Train until a trial reports the sweep's metrics, and return that trial; return None once
        all have ended.

        Raises RunError for a trial that ended without the sweep's metrics; errors in training or
        hooks propagate.
        """
        while True:
            self._current = None
            report = self._lifecycle.next()
            if report is None:
                self._lifecycle.shut_down()
                for trial in self._trials:
                    self._end(trial)
                self._record_ends()
                return None

            self._record_ends()
            trial = self._trials[report.run_index]
            self._current = trial
            has_metrics = self._add_report(trial, report)
            if report.is_final:
                self._end(trial)
            if has_metrics:
                return trial

    def _add_report(self, trial: ActiveTrial, report: Report) -> bool:
        """Add a trial's report, and return whether it has the sweep's metrics."""
        trial.last = report
        if trial in self._trials_without_report:
            self._trials_without_report.remove(trial)
            # The folder already holds this report.
            trial.reports = _read_reports_with_metrics(trial.folder, self._settings)
            if self._settings.has_metrics(report.metrics):
                del trial.reports[-1:]

        has_metrics = trial.metric_monitor.has_metrics(report)
        if has_metrics:
            trial.reports.append(report.metrics)
        return has_metrics

    def stop(self, trial: ActiveTrial, reason: str) -> None:
        """Stop a trial at its latest report; the other trials of the group continue."""
        assert trial.last is not None
        if not trial.outcome:
            self._lifecycle.engine.end_run(trial.last.run_index)
        if not trial.outcome or trial.last.interrupted:
            trial.outcome = "stopped", [reason]

    def mark_failed(self, error: BaseException) -> ActiveTrial:
        """Mark the trial that failed, and return it; the caller records its end."""
        trial = self._current or self._trials[find_failed_run(error)]
        trial.outcome = None
        trial.has_failed = True
        return trial

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""
        return self._lifecycle.engine.save()

    def shut_down(self) -> None:
        """Stop training. Trials that have not ended may be resumed."""
        self._lifecycle.shut_down()
        self._record_ends()
        for trial in self._trials:
            if trial.is_recorded:
                compact_rows(trial.folder)

    def _end(self, trial: ActiveTrial) -> None:
        if trial.has_ended or trial.outcome:
            return
        self._current = trial
        last = trial.last
        if not trial.reports and not (last and last.interrupted):
            raise trial.metric_monitor.make_missing_metrics_error(last)
        trial.outcome = find_outcome(last)

    def _record_ends(self) -> None:
        for trial in self._trials:
            if trial.outcome and not trial.has_ended:
                status, reasons = trial.outcome
                trial.is_recorded = True
                trial.folder.end(status, stopped=list(reasons), error=None)
