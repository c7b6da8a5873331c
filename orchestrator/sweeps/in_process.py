"""A sweep in this process, without starting Ray: trials with one rank each, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.disk.sweep_folder import end_trial
from orchestrator.engines.error_origin import is_gpu_failure
from orchestrator.engines.in_process import InProcess
from orchestrator.errors import ConfigError, MetricMissing, RunError
from orchestrator.sweeps.active_trial import ActiveTrial
from orchestrator.sweeps.pruner import Pruner
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.search import list_members
from orchestrator.sweeps.stopping_rules import describe_scheduler_stop
from orchestrator.sweeps.trial_group import Failed, Reported, TrialGroup


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
            trials = []
            for member in list_members(suggestion):
                trial = self._begin(member["number"], member["values"])
                if trial:
                    trials.append(trial)
            self._sweep.begin({trial.number: trial.values for trial in trials})
            self._train(trials)

    def _begin(self, number: int, values: Mapping[str, Any]) -> ActiveTrial | None:
        sweep = self._sweep
        try:
            return ActiveTrial.begin(
                sweep.folder.location, number, sweep.experiment.source, sweep.settings, values
            )
        except ConfigError as error:
            sweep.record_failure(number, values, str(error), metric_missing=False)
            return None

    def _train(self, trials: Sequence[ActiveTrial]) -> None:
        """Train trials that share a training run until all or the sweep have ended. If one fails,
        the others continue without it."""
        group = TrialGroup(self._engine, trials, self._sweep.settings)
        while not group.has_ended:
            running = [trial for trial in trials if not trial.has_ended]
            if self._sweep.end.is_due():
                for trial in running:
                    end_trial(trial.folder, *self._sweep.find_ending(trial.number))
                return
            self._train_until_one_fails(group)
            for trial in running:
                if trial.has_ended and trial.status != "failed":
                    interrupted = trial.status == "interrupted"
                    self._sweep.record_end(trial.number, trial.values, interrupted=interrupted)

    def _train_until_one_fails(self, group: TrialGroup) -> None:
        while event := group.next():
            if isinstance(event, Reported):
                event = self._stop_if_due(group, event.trial)
            if event:
                self._record_failure(group, event)
                return

    def _stop_if_due(self, group: TrialGroup, trial: ActiveTrial) -> Failed | None:
        """Stop a trial at its report if there is a reason; return its failure if that fails."""
        try:
            reason = self._find_reason_to_stop(trial)
            if reason:
                group.stop(trial, reason)
        except BaseException as error:
            return group.fail(trial, error)
        return None

    def _record_failure(self, group: TrialGroup, failed: Failed) -> None:
        """Record the failure of a trial, without which the others continue. Raises RunError if no
        trial can use the GPU any more."""
        trial = failed.trial
        failure = failed.failure
        if is_gpu_failure(failure):
            raise RunError(
                f"{failure}\nThe GPU is unusable; `hookyard resume` continues in a new process"
            ) from failure
        group.shut_down()
        missing = isinstance(failure, MetricMissing)
        self._sweep.record_failure(trial.number, trial.values, str(failure), metric_missing=missing)

    def _find_reason_to_stop(self, trial: ActiveTrial) -> str | None:
        report = trial.last
        assert report is not None
        self._sweep.record_report(trial.number, report.metrics)

        # Rules and pruner get every report, whatever the other decides.
        count = len(trial.reports)
        metrics = {**report.metrics, "training_iteration": count}
        reason = self._sweep.find_reason_to_stop(trial.number, metrics, trial.training_s)
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
