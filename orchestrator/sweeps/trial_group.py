"""Trials that share one training, or a single trial, driven to their ends. Driver, or a trial's process under Tune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.config.sections.sweep import Sweep
from orchestrator.config.text.source import ExperimentSource
from orchestrator.engines.lifecycle import Lifecycle, compact_rows, ending_of
from orchestrator.engines.session import Assignment
from orchestrator.engines.shared_training import member_of
from orchestrator.loop.report import Report
from orchestrator.records.run_folder import RunFolder
from orchestrator.sweeps.metric_watch import MetricWatch
from orchestrator.sweeps.results.previous_trials import reports_with_metrics, training_seconds
from orchestrator.sweeps.trial_setup import begin_trial

if TYPE_CHECKING:
    from orchestrator.engines.engine import Engine


@dataclass
class ActiveTrial:
    """A trial that has begun."""

    number: int
    values: Mapping[str, Any]
    resolved: ResolvedExperiment | None
    """Its experiment, until an attempt trains with the task and the hooks."""
    source: ExperimentSource
    folder: RunFolder
    watch: MetricWatch
    reports: list[Mapping[str, Any]]
    """Those that have the sweep's metrics."""
    seconds_before: float
    """Training time of earlier attempts."""
    began: float
    last: Report | None = None
    ending: tuple[str, Sequence[str]] | None = None
    """Status and reasons of its end."""
    is_over: bool = False
    """Whether its end is written down."""

    @classmethod
    def begin(
        cls, location: str, number: int, source: ExperimentSource, settings: Sweep, values: Mapping[str, Any]
    ) -> ActiveTrial:
        """Begin or resume a trial, as `begin_trial` does."""
        resolved, folder = begin_trial(location, number, source, settings, values)
        reports = reports_with_metrics(folder, settings)
        watch = MetricWatch(settings, resolved, folder, seen=bool(reports))
        before, source = training_seconds(folder), resolved.experiment.source
        return cls(number, values, resolved, source, folder, watch, reports, before, monotonic() - before)

    @property
    def seconds(self) -> float:
        """Training time so far."""
        return monotonic() - self.began


class TrialGroup:
    """Trials that share the training of the first one.

    The end of a trial is written down once its files are closed, which is when another one reports.
    """

    def __init__(
        self, engine: Engine, trials: Sequence[ActiveTrial], settings: Sweep, checkpoint: str | None = None
    ) -> None:
        sweep = settings.model_dump(mode="json")
        leader, *followers = (
            Assignment(trial.source, trial.folder.location, checkpoint=checkpoint, sweep=sweep) for trial in trials
        )
        resolved, trials[0].resolved = trials[0].resolved, None
        self._lifecycle = Lifecycle(engine, replace(leader, followers=tuple(followers)), resolved)
        self._trials, self._settings = trials, settings
        self._unreported = list(trials)
        self._current: ActiveTrial | None = None

    def next(self) -> ActiveTrial | None:
        """Train to the next report with the sweep's metrics and return its trial; None when all are over.

        Raises what a training or a hook does, and RunError for a trial that ended without the sweep's metrics.
        """
        while True:
            self._current = None
            report = self._lifecycle.next()
            if report is None:
                self._lifecycle.leave()
                for trial in self._trials:
                    self._end(trial)
            self._write_down_ends()
            if report is None:
                return None
            trial = self._current = self._trials[report.member]
            trial.last = report
            if trial in self._unreported:
                self._unreported.remove(trial)
                trial.reports = self._earlier_reports(trial.folder, report)
            has_metrics = trial.watch.has_metrics(report)
            if has_metrics:
                trial.reports.append(report.metrics)
            if report.final:
                self._end(trial)
            if has_metrics:
                return trial

    def _earlier_reports(self, folder: RunFolder, first: Report) -> list[Mapping[str, Any]]:
        """Return the reports that count before the first one of this attempt; later ones are made again."""
        reports = reports_with_metrics(folder, self._settings)
        return reports[:-1] if self._settings.has_metrics(first.metrics) and not first.cut_short else reports

    def stop(self, trial: ActiveTrial, reason: str) -> None:
        """Stop a trial at the report that it has just made."""
        assert trial.last is not None
        if not trial.ending:
            trial.ending = "stopped", [reason]
            self._lifecycle.drop(trial.last.member)

    def failed(self, error: BaseException) -> ActiveTrial:
        """Return the trial that failed. The caller writes down its end."""
        trial = self._current or self._trials[member_of(error)]
        trial.ending, trial.is_over = None, True
        return trial

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""
        return self._lifecycle.save()

    def leave(self) -> None:
        """Leave all trials where they are."""
        self._lifecycle.leave()
        self._write_down_ends()
        for trial in self._trials:
            if trial.is_over and trial.ending:
                compact_rows(trial.folder)

    def _end(self, trial: ActiveTrial) -> None:
        if trial.is_over or trial.ending:
            return
        self._current, last = trial, trial.last
        if not trial.reports and not (last and last.interrupted):
            raise trial.watch.ended_without_metrics(last)
        trial.ending = ending_of(last)

    def _write_down_ends(self) -> None:
        for trial in self._trials:
            if trial.ending and not trial.is_over:
                status, reasons = trial.ending
                trial.is_over = True
                trial.folder.end(status, stopped=list(reasons), error=None)
