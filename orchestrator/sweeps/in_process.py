"""A sweep in this process, without starting Ray: trials with one rank each, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.disk.sweep_folder import end_trial
from orchestrator.engines.in_process import InProcess
from orchestrator.errors import MetricMissing, RunError
from orchestrator.sweeps.active_trial import ActiveTrial, list_training
from orchestrator.sweeps.after_failure import AfterFailure, decide_after_failure
from orchestrator.sweeps.begun_trials import begin_trials
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.search import list_members
from orchestrator.sweeps.trial_group import (
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialGroup,
    TrialReported,
)


class SequentialTrials:
    """Runner of a sweep's trials, one after another, or several in a shared training run. Used in
    the driver."""

    def __init__(self, sweep: RunningSweep, end_hung: Callable[[str], None] | None = None) -> None:
        self._sweep = sweep
        self._search = sweep.search
        self._engine = InProcess(
            sweep.experiment.workers, stop_requested=sweep.end.stop_requested, end_hung=end_hung
        )

    def run(self) -> None:
        """Run until all trials or the sweep have ended. A failed trial ends the sweep only if
        `fail_fast` is set."""
        for _ in range(self._search.count):
            if self._sweep.end.is_due():
                return
            suggestion = self._search.suggest()
            if suggestion is None:
                return
            begun = begin_trials(
                list_members(suggestion),
                self._sweep.folder.location,
                self._sweep.experiment.source,
                self._sweep.settings,
            )
            for member, error in begun.refused:
                self._sweep.record_failure(
                    member["number"], member["values"], str(error), metric_missing=False
                )
            self._sweep.begin({trial.number: trial.values for trial in begun.trials})
            self._train(begun.trials)

    def _train(self, trials: Sequence[ActiveTrial]) -> None:
        """Train trials that share a training run until all or the sweep have ended."""
        group = TrialGroup(self._engine, trials, self._sweep.settings)
        while not group.has_ended:
            if not group.is_training and self._sweep.end.is_due():
                for trial in list_training(trials):
                    end_trial(trial.folder, *self._sweep.find_ending(trial.number))
                return
            events = group.advance()
            while events:
                events = self._handle_all(events, group)

    def _handle_all(self, events: Sequence[TrialEvent], group: TrialGroup) -> list[TrialEvent]:
        """Handle what has happened to trials; return what happens then."""
        following: list[TrialEvent] = []
        for event in events:
            trial = event.trial
            match event:
                case TrialReported():
                    following += self._stop_if_due(trial, group)
                case TrialFailed():
                    self._record_failure(event, group)
                case TrialEnded():
                    self._sweep.record_end(trial.number, trial.values, trial.status)

        has_failure = any(isinstance(event, TrialFailed) for event in events)
        if has_failure and self._sweep.end.is_due():
            following += group.close()
        return following

    def _stop_if_due(self, trial: ActiveTrial, group: TrialGroup) -> list[TrialEvent]:
        """Stop a trial at its report if there is a reason. If that fails, the trial has failed."""
        try:
            reason = self._find_reason_to_stop(trial)
            if reason:
                group.stop(trial, reason)
        except Exception as error:
            return group.fail(trial, error)
        return []

    def _record_failure(self, failed: TrialFailed, group: TrialGroup) -> None:
        """Record the failure of a trial, without which the others continue. Raises RunError if no
        trial can use the GPU any more."""
        trial = failed.trial
        failure = failed.failure
        others = [other for other in group.trials if other is not trial]
        after = decide_after_failure(failed.error, others, restarts=False)
        if after is AfterFailure.END_ALL:
            raise RunError(
                f"{failure}\nThe GPU is unusable; `hookyard resume` continues in a new process"
            ) from failure
        missing = isinstance(failure, MetricMissing)
        self._sweep.record_failure(trial.number, trial.values, str(failure), metric_missing=missing)

    def _find_reason_to_stop(self, trial: ActiveTrial) -> str | None:
        """Pass the last report of a trial to the sweep, and return the reason to stop the trial; None
        if it continues, or ends there by itself."""
        report = trial.last
        assert report is not None
        reason = self._sweep.add_report(
            trial.number, len(trial.reports), report.metrics, trial.training_s
        )
        if report.is_final and not report.interrupted:
            return None
        return reason or self._sweep.end.budget.explain_end()
