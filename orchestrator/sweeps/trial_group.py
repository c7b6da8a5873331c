"""Trials that share one training, driven to their ends. In the process that drives them: a sweep's own, or a trial's
under Tune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.config.sections.sweep import Sweep
from orchestrator.config.text.source import ExperimentSource
from orchestrator.engines.lifecycle import Lifecycle, ending_of, put_away
from orchestrator.engines.session import Assignment
from orchestrator.engines.shared_training import turn_of
from orchestrator.loop.report import Report
from orchestrator.records.run_folder import RunFolder
from orchestrator.sweeps.metric_watch import MetricWatch
from orchestrator.sweeps.results.previous_trials import judged_reports, training_seconds
from orchestrator.sweeps.trial_setup import begin_trial

if TYPE_CHECKING:
    from orchestrator.engines.engine import Engine


@dataclass
class TrialUnderWay:
    """A trial that has begun."""

    number: int
    values: Mapping[str, Any]
    source: ExperimentSource
    unused: ResolvedExperiment | None
    """Its task and hooks until something trains with them."""
    folder: RunFolder
    watch: MetricWatch
    made: list[Mapping[str, Any]]
    """Its reports that hold the sweep's metrics."""
    began: float
    """When it would have begun without a pause, by `monotonic`."""
    last: Report | None = None
    ending: tuple[str, Sequence[str]] | None = None
    """How it ends, and why."""
    is_over: bool = False
    """Whether that is written down."""

    @classmethod
    def begin(
        cls, location: str, number: int, source: ExperimentSource, settings: Sweep, values: Mapping[str, Any]
    ) -> TrialUnderWay:
        """As `begin_trial`."""
        resolved, folder = begin_trial(location, number, source, settings, values)
        made = judged_reports(folder, settings)
        watch = MetricWatch(settings, resolved, folder, judged=bool(made))
        began, source = monotonic() - training_seconds(folder), resolved.experiment.source
        return cls(number, values, source, resolved, folder, watch, made, began)

    @property
    def seconds(self) -> float:
        """How long it has trained."""
        return monotonic() - self.began


class TrialGroup:
    """Trials that share the training of the first; a single one where none does.

    How a trial ended is written down once its files are closed, which is when another one reports; the rows of all are
    put away when training has ended.
    """

    def __init__(self, engine: Engine, trials: Sequence[TrialUnderWay], settings: Sweep) -> None:
        sweep = settings.model_dump(mode="json")
        leader, *followers = (Assignment(trial.source, trial.folder.location, sweep=sweep) for trial in trials)
        resolved, trials[0].unused = trials[0].unused, None
        self._life = Lifecycle(engine, replace(leader, followers=tuple(followers)), resolved)
        self._trials, self._settings = trials, settings
        self._unheard = list(trials)
        self._judging: TrialUnderWay | None = None

    def next(self) -> TrialUnderWay | None:
        """Trains up to the next report of one of them, which is its `last`; None when all are over. Raises what a
        training or a hook does, and RunError for one that ended without a report that holds the sweep's metrics."""
        self._judging = None
        report = self._life.next()
        if report is None:
            self._life.leave()
            for trial in self._trials:
                self._ends(trial)
        self._write_down_ends()
        if report is None:
            return None
        trial = self._judging = self._trials[report.member]
        trial.last = report
        if trial in self._unheard:
            self._unheard.remove(trial)
            trial.made = self._counting(trial.folder, report)
        return trial

    def _counting(self, folder: RunFolder, first: Report) -> list[Mapping[str, Any]]:
        """The reports of a trial that count before the first of an attempt: those after where it goes on from are made
        again."""
        made = judged_reports(folder, self._settings)
        return made[:-1] if self._settings.has_metrics(first.metrics) and not first.cut_short else made

    def judged(self, trial: TrialUnderWay, reason: str | None) -> None:
        """What becomes of the trial that has just reported: it is stopped for a reason, or goes on, or that was its
        end."""
        assert trial.last is not None
        if reason:
            trial.ending = "stopped", [reason]
            self._life.drop(trial.last.member)
        elif trial.last.final:
            self._ends(trial)

    def failed(self, error: BaseException) -> TrialUnderWay:
        """Of which trial a failure is; its end is not written down."""
        trial = self._judging or self._trials[turn_of(error)]
        trial.ending, trial.is_over = None, True
        return trial

    def leave(self) -> None:
        """Lets go of all of them where they stand."""
        self._life.leave()
        self._write_down_ends()
        for trial in self._trials:
            if trial.is_over and trial.ending:
                put_away(trial.folder)

    def _ends(self, trial: TrialUnderWay) -> None:
        """Notes how a trial has ended by itself."""
        if trial.is_over or trial.ending:
            return
        self._judging, last = trial, trial.last
        if not trial.made and not (last and last.interrupted):
            raise trial.watch.unjudged(last)
        trial.ending = ending_of(last)

    def _write_down_ends(self) -> None:
        for trial in self._trials:
            if trial.ending and not trial.is_over:
                status, reasons = trial.ending
                trial.is_over = True
                trial.folder.end(status, stopped=list(reasons), error=None)
