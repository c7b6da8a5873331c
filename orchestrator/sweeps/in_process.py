"""A sweep in this process, without starting Ray: trials with one rank each, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from orchestrator.disk.sweep_folder import end_trial
from orchestrator.engines.in_process import InProcess
from orchestrator.errors import MetricMissing, RunError
from orchestrator.sweeps.active_trial import ActiveTrial, begin_trials, list_training
from orchestrator.sweeps.after_failure import AfterFailure, decide_after_failure
from orchestrator.sweeps.pruner import Pruner
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.search import list_members
from orchestrator.sweeps.stopping_rules import describe_scheduler_stop
from orchestrator.sweeps.training_attempt import (
    TrainingAttempt,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialReported,
)


class SequentialTrials:
    """Runner of a sweep's trials, one after another, or several in a shared training run. Used in
    the driver."""

    def __init__(self, sweep: RunningSweep, end_hung: Callable[[str], None] | None = None) -> None:
        self._sweep = sweep
        self._search = sweep.search
        self._pruner = Pruner.make(sweep.settings, sweep.previous)
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
        """Train trials that share a training run until all or the sweep have ended. If one fails,
        the others continue without it in another attempt."""
        while continuing := list_training(trials):
            if self._sweep.end.is_due():
                for trial in continuing:
                    end_trial(trial.folder, *self._sweep.find_ending(trial.number))
                return
            attempt = TrainingAttempt(self._engine, continuing, self._sweep.settings)
            self._handle_all(attempt.train(), attempt)

    def _handle_all(self, events: Iterable[TrialEvent], attempt: TrainingAttempt) -> None:
        """Handle what happens in an attempt, as it happens."""
        for event in events:
            trial = event.trial
            match event:
                case TrialReported():
                    self._stop_if_due(trial, attempt)
                case TrialFailed():
                    self._record_failure(event, attempt)
                case TrialEnded():
                    self._sweep.record_end(trial.number, trial.values, trial.status)

    def _stop_if_due(self, trial: ActiveTrial, attempt: TrainingAttempt) -> None:
        """Stop a trial at its report if there is a reason. If that fails, the trial has failed."""
        try:
            reason = self._add_report(trial)
            if reason:
                attempt.stop(trial, reason)
        except Exception as error:
            self._handle_all(attempt.close_after_failure(trial, error), attempt)

    def _record_failure(self, failed: TrialFailed, attempt: TrainingAttempt) -> None:
        """Record the failure of a trial, without which the others continue. Raises RunError if no
        trial can use the GPU any more."""
        trial = failed.trial
        failure = failed.failure
        others = [other for other in attempt.trials if other is not trial]
        after = decide_after_failure(failed.error, others, restarts=False)
        if after is AfterFailure.END_ALL:
            raise RunError(
                f"{failure}\nThe GPU is unusable; `hookyard resume` continues in a new process"
            ) from failure
        missing = isinstance(failure, MetricMissing)
        self._sweep.record_failure(trial.number, trial.values, str(failure), metric_missing=missing)
        if self._sweep.end.is_due():
            self._handle_all(attempt.close(), attempt)

    def _add_report(self, trial: ActiveTrial) -> str | None:
        """Show the last report of a trial, and pass it to the rules and the pruner; return the
        reason to stop the trial, or None."""
        report = trial.last
        assert report is not None
        self._sweep.show_report(trial.number, report.metrics)

        # Rules and pruner get every report, whatever the other decides.
        count = len(trial.reports)
        metrics = {**report.metrics, "training_iteration": count}
        reason = self._sweep.rules.add_report(trial.number, metrics, trial.training_s)
        is_pruned = self._pruner is not None and self._pruner.should_stop(
            trial.number, count, report.metrics
        )

        if report.is_final and not report.interrupted:
            return None
        if reason:
            return reason
        if is_pruned:
            return describe_scheduler_stop(self._sweep.settings, count)
        return self._sweep.end.budget.explain_end()
