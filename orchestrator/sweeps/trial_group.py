"""Groups of trials that share one training run.

This code runs in the driver, or under Tune in the trial's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.disk.rows.compaction import compact_rows
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.lifecycle import Lifecycle, find_outcome
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.loop.report import Report
from orchestrator.loop.sharing.failed_run import find_failed_run
from orchestrator.sweeps.active_trial import ActiveTrial, Outcome, TrialState

if TYPE_CHECKING:
    from orchestrator.engines.lifecycle import Engine


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
        """The trial whose report or end is being handled, here or by the caller; an error is its
        own."""

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
        has_metrics = trial.metric_monitor.has_metrics(report)
        if trial in self._trials_without_report:
            self._trials_without_report.remove(trial)
            trial.reread_reports(self._settings)
        elif has_metrics:
            trial.reports.append(report.metrics)
        return has_metrics

    def stop(self, trial: ActiveTrial, reason: str) -> None:
        """Stop a trial at its latest report; the other trials of the group continue."""
        assert trial.last is not None
        is_training = trial.state is TrialState.TRAINING
        if is_training:
            self._lifecycle.engine.end_run(trial.last.run_index)
        if is_training or trial.last.interrupted:
            trial.end(Outcome("stopped", [reason]))

    def mark_failed(self, error: BaseException) -> ActiveTrial:
        """Mark the trial that failed, and return it; the caller records its failure. Raises the
        error if all trials have ended, because a recorded outcome stays."""
        unended = [trial for trial in self._trials if not trial.has_ended]
        if not unended:
            raise error
        failed = self._current
        if failed not in unended:
            failed = self._find_failed(error, unended)
        failed.fail()
        return failed

    def _find_failed(self, error: BaseException, unended: Sequence[ActiveTrial]) -> ActiveTrial:
        """Return the trial by which an error is marked. If a process died, nothing is marked, and
        the first trial that still trains has failed."""
        index = find_failed_run(error)
        if index is not None and self._trials[index] in unended:
            return self._trials[index]
        training = [trial for trial in unended if trial.state is TrialState.TRAINING]
        return [*training, *unended][0]

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path."""
        return self._lifecycle.engine.save()

    def shut_down(self) -> None:
        """Stop training. Trials that have not ended may be resumed."""
        self._lifecycle.shut_down()
        self._record_ends()
        for trial in self._trials:
            if trial.state is TrialState.RECORDED:
                compact_rows(trial.folder)

    def _end(self, trial: ActiveTrial) -> None:
        if trial.state is not TrialState.TRAINING:
            return
        self._current = trial
        last = trial.last
        if not trial.reports and not (last and last.interrupted):
            raise trial.metric_monitor.make_missing_metrics_error(last)
        trial.end(Outcome(*find_outcome(last)))

    def _record_ends(self) -> None:
        for trial in self._trials:
            if trial.state is TrialState.ENDING:
                self._current = trial
                trial.record()
