"""Trials: their experiments and run folders, and groups of them that share one training.

These run in the process that drives the trials: the driver, or under Tune a trial's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from orchestrator.config.checks.metrics import inferred_modes
from orchestrator.config.load import to_yaml
from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.config.sections.sweep import Sweep
from orchestrator.config.text.source import ExperimentSource
from orchestrator.engines.lifecycle import Lifecycle, compact_rows, ending_of
from orchestrator.engines.session import Assignment
from orchestrator.engines.shared_training import member_of
from orchestrator.errors import ConfigError
from orchestrator.loop.model.weight_sources import find_for
from orchestrator.loop.report import Report
from orchestrator.records.process import Process
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import trial_folder
from orchestrator.sweeps.metric_watch import MetricWatch
from orchestrator.sweeps.results.previous_trials import reports_with_metrics, training_seconds

if TYPE_CHECKING:
    from orchestrator.engines.engine import Engine


def trial_source(source: ExperimentSource, settings: Sweep, values: Mapping[str, Any]) -> ExperimentSource:
    """Return the source of one trial, with the modes and the row statistics that the sweep's metrics need."""
    trial = source.without_sweep().with_values(values)
    written, _ = trial.merged()
    trial = trial.with_values(inferred_modes(written, settings))
    if not settings.row_stats:
        return trial
    entry = (written.get("hooks") or {}).get("row_stats")
    reported = entry.get("report", []) if isinstance(entry, dict) else []
    return trial.with_values({"hooks.row_stats.report": list(dict.fromkeys([*reported, *settings.row_stats]))})


def begin_trial(
    location: str, number: int, source: ExperimentSource, settings: Sweep, values: Mapping[str, Any]
) -> tuple[ResolvedExperiment, RunFolder]:
    """Return a trial's experiment and its folder, created if it is new. A resumed trial may have other values.

    `source` is the sweep's. Raises ConfigError if the values cannot be combined, and records a failed trial.
    """
    folder = trial_folder(location, number)
    is_new, init, error = not folder.exists(), None, None
    try:
        source = trial_source(source, settings, values)
        resolved = resolve(source)
        init = find_for(resolved.experiment) if is_new else None
        text = to_yaml(resolved.experiment)
    except ConfigError as raised:
        error, text = raised, RunFolder(location).experiment_text()
    if is_new:
        configuration = number // settings.repeats if settings.repeats > 1 else None
        modes = dict(settings.objectives)
        folder.begin(
            text,
            source,
            trial=folder.name,
            values=values,
            configuration=configuration,
            modes=modes,
            init=init,
            local=False,
        )
    else:
        folder.write_experiment(text, source)
        folder.update(status="running", error=None, values=values, **asdict(Process.this()))
    if error:
        folder.end("failed", error=str(error), mistake=True)
        raise error
    return resolved, folder


@dataclass
class ActiveTrial:
    """A trial that has begun."""

    number: int
    values: Mapping[str, Any]
    resolved: ResolvedExperiment | None
    """Its experiment; None once an attempt owns the task and the hooks."""
    source: ExperimentSource
    folder: RunFolder
    watch: MetricWatch
    reports: list[Mapping[str, Any]]
    """Reports with the sweep's metrics."""
    started_at: float
    """`monotonic()` at its start, minus the training time of earlier attempts."""
    last: Report | None = None
    ending: tuple[str, Sequence[str]] | None = None
    """Status and reasons of its end."""
    is_over: bool = False
    """True once its end is recorded."""

    @classmethod
    def begin(
        cls, location: str, number: int, source: ExperimentSource, settings: Sweep, values: Mapping[str, Any]
    ) -> ActiveTrial:
        resolved, folder = begin_trial(location, number, source, settings, values)
        reports = reports_with_metrics(folder, settings)
        watch = MetricWatch(settings, resolved, folder, seen=bool(reports))
        started_at = monotonic() - training_seconds(folder)
        return cls(number, values, resolved, resolved.experiment.source, folder, watch, reports, started_at)

    @property
    def seconds(self) -> float:
        return monotonic() - self.started_at


class TrialGroup:
    """Trials that share the training of the first one.

    The group records the end of a trial once the trial's files are closed. That is so when the next report arrives.
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
        """Train until a trial reports the sweep's metrics, and return that trial; return None once all have ended.

        Raises the errors of training and hooks, and RunError for a trial that ended without the sweep's metrics.
        """
        while True:
            self._current = None
            report = self._lifecycle.next()
            if report is None:
                self._lifecycle.leave()
                for trial in self._trials:
                    self._end(trial)
            self._record_ends()
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
        """Return the reports of earlier attempts that precede this attempt's first; this attempt repeats later ones."""
        reports = reports_with_metrics(folder, self._settings)
        return reports[:-1] if self._settings.has_metrics(first.metrics) and not first.cut_short else reports

    def stop(self, trial: ActiveTrial, reason: str) -> None:
        """Stop a trial at its latest report; the other trials of the group continue."""
        assert trial.last is not None
        if not trial.ending:
            self._lifecycle.drop(trial.last.member)
        if not trial.ending or trial.last.interrupted:
            trial.ending = "stopped", [reason]

    def failed(self, error: BaseException) -> ActiveTrial:
        """Return the trial that failed. The caller records its end."""
        trial = self._current or self._trials[member_of(error)]
        trial.ending, trial.is_over = None, True
        return trial

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""
        return self._lifecycle.save()

    def leave(self) -> None:
        """Stop training. Trials that have not ended may be resumed."""
        self._lifecycle.leave()
        self._record_ends()
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

    def _record_ends(self) -> None:
        for trial in self._trials:
            if trial.ending and not trial.is_over:
                status, reasons = trial.ending
                trial.is_over = True
                trial.folder.end(status, stopped=list(reasons), error=None)
