"""A sweep in this process, without starting Ray: one rank, one trial after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.config.sections.sweep import Fifo, Race
from orchestrator.engines.in_process import InProcess
from orchestrator.engines.lifecycle import failing
from orchestrator.engines.rank_failures import is_gpu_failure
from orchestrator.engines.ray_environment import set_environment
from orchestrator.errors import ConfigError, MetricMissing, RunError
from orchestrator.records.sweep_folder import end_trial
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.stopping_rules import BY_SCHEDULER
from orchestrator.sweeps.trials import ActiveTrial, TrialGroup

if TYPE_CHECKING:
    from orchestrator.sweeps.tune.schedulers import SequentialScheduler


class SequentialTrials:
    """Runner of a sweep's trials, one after another; trials that share a training run, together. Used in the driver."""

    def __init__(self, sweep: RunningSweep, end_hung: Callable[[str], None] | None = None) -> None:
        self._sweep, self._rules = sweep, sweep.rules
        self._engine = InProcess(sweep.experiment.workers, stop_requested=sweep.rules.stop_requested, end_hung=end_hung)
        self._scheduler = _scheduler(sweep)

    def run(self) -> None:
        """Run until all trials are over or the sweep ends. A failed trial does not end it, unless with `fail_fast`."""
        for _ in range(self._sweep.search.count):
            if self._rules.sweep_is_over() or (chosen := self._sweep.search.suggest()) is None:
                return
            trials = [self._begin(trial["number"], trial["values"]) for trial in (chosen, *chosen["followers"])]
            self._train([trial for trial in trials if trial])

    def _begin(self, number: int, values: Mapping[str, Any]) -> ActiveTrial | None:
        sweep = self._sweep
        try:
            trial = ActiveTrial.begin(sweep.folder.location, number, sweep.experiment.source, sweep.settings, values)
        except ConfigError as error:
            sweep.failed(number, values, str(error), metric_missing=False)
            return None
        sweep.begin(number, values)
        if self._scheduler:
            self._scheduler.add(number)
        return trial

    def _train(self, trials: Sequence[ActiveTrial]) -> None:
        """Train trials that share a training run to their ends. If one fails, the others continue without it."""
        while trials:
            if self._rules.sweep_is_over():
                for trial in trials:
                    end_trial(trial.folder, *self._rules.ending(trial.folder.name))
                return
            self._train_until_one_fails(trials)
            for trial in trials:
                if trial.is_over:
                    self._finish(trial)
            trials = [trial for trial in trials if not trial.is_over]

    def _finish(self, trial: ActiveTrial) -> None:
        last = trial.reports[-1] if trial.reports else None
        if self._scheduler:
            self._scheduler.remove(trial.number, last, len(trial.reports))
        if trial.outcome:
            self._sweep.ended(trial.number, trial.values, last)

    def _train_until_one_fails(self, trials: Sequence[ActiveTrial]) -> None:
        group = TrialGroup(self._engine, trials, self._sweep.settings)
        try:
            while trial := group.next():
                if reason := self._reason_to_stop(trial):
                    group.stop(trial, reason)
            group.shut_down()
        except BaseException as error:
            trial = group.mark_failed(error)
            try:
                with failing(trial.folder):
                    raise
            except Exception as failure:
                if is_gpu_failure(failure):
                    raise RunError(
                        f"{failure}\nThis process can no longer use its GPU, so the sweep ends here; `hookyard resume`"
                        " continues it in a new process"
                    ) from failure
                group.shut_down()
                missing = isinstance(failure, MetricMissing)
                self._sweep.failed(trial.number, trial.values, str(failure), metric_missing=missing)

    def _reason_to_stop(self, trial: ActiveTrial) -> str | None:
        report, name, rules, count = trial.last, trial.folder.name, self._rules, len(trial.reports)
        assert report is not None
        self._sweep.reported(trial.number, report.metrics)
        by_rule = rules.should_stop(name, {**report.metrics, "training_iteration": count}, trial.seconds)
        if report.is_final and not report.interrupted:
            return None
        if by_rule:
            return rules.reasons[name]
        by_scheduler = self._scheduler and self._scheduler.should_stop(trial.number, report.metrics, count)
        return BY_SCHEDULER if by_scheduler else rules.budget_used()


def _scheduler(sweep: RunningSweep) -> SequentialScheduler | None:
    """Return the sweep's scheduler if it is one of Ray Tune's, which takes a second to import."""
    if isinstance(sweep.settings.scheduler, Fifo | Race):
        return None
    set_environment(None)
    from orchestrator.sweeps.tune.schedulers import SequentialScheduler

    return SequentialScheduler(sweep.settings, sweep.previous)
