"""A sweep in this process, without starting Ray: one rank, one trial after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.config.sections.sweep import Fifo, Race, Sweep
from orchestrator.engines.in_process import InProcess
from orchestrator.engines.lifecycle import failing
from orchestrator.engines.rank_failures import lost_gpu
from orchestrator.engines.ray_environment import set_environment
from orchestrator.errors import ConfigError, MetricMissing, RunError
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import end_trial, trial_name
from orchestrator.sweeps.results.population_history import History
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from orchestrator.sweeps.stopping_rules import BY_SCHEDULER
from orchestrator.sweeps.sweep_context import SweepContext
from orchestrator.sweeps.trial_group import TrialGroup, TrialUnderWay

if TYPE_CHECKING:
    from orchestrator.sweeps.tune.schedulers import SequentialScheduler


class TrialsInTurn:
    """Runs the trials of a sweep in turn; those that share a training at once. Driver."""

    def __init__(self, sweep: SweepContext, end_hung: Callable[[str], None] | None = None) -> None:
        self._experiment, self._settings, self._location = sweep.experiment, sweep.settings, sweep.folder.location
        self._rules, self._announcer, self._index = sweep.rules, sweep.announcer, sweep.index
        self._engine = InProcess(sweep.experiment.workers, stop_asked=sweep.rules.asked, end_hung=end_hung)
        self._scheduler = _scheduler(sweep.settings, sweep.folder, sweep.previous)
        self._search = sweep.search

    def run(self) -> None:
        """Until all are over or the budget is used up; one that fails is written down and the others go on, unless the
        sweep is to end then."""
        for _ in range(self._search.count):
            if self._rules.sweep_is_over() or (chosen := self._search.suggest()) is None:
                return
            begun = [self._begin(one["number"], one["values"]) for one in (chosen, *chosen["followers"])]
            self._train([trial for trial in begun if trial])

    def _begin(self, number: int, values: Mapping[str, Any]) -> TrialUnderWay | None:
        try:
            trial = TrialUnderWay.begin(self._location, number, self._experiment.source, self._settings, values)
        except ConfigError as error:
            self._failed(number, values, str(error))
            return None
        self._announcer.begins(trial.folder.name, values)
        return trial

    def _train(self, trials: Sequence[TrialUnderWay]) -> None:
        """Trains trials that share one training to their ends; where one fails, the others go on without it."""
        for trial in trials:
            if self._scheduler:
                self._scheduler.begins(trial.number)
        while trials:
            if self._rules.sweep_is_over():
                for trial in trials:
                    end_trial(trial.folder, *self._rules.ending(trial.folder.name))
                return
            self._train_until_one_fails(trials)
            for trial in (trial for trial in trials if trial.is_over):
                last = trial.made[-1] if trial.made else None
                if self._scheduler:
                    self._scheduler.ended(trial.number, last, len(trial.made))
                if trial.ending:
                    self._announcer.ended(trial.folder.name, trial.values)
                    self._index.keep(trial.folder.name)
                    self._search.ended(trial.number, last)
            trials = [trial for trial in trials if not trial.is_over]

    def _train_until_one_fails(self, trials: Sequence[TrialUnderWay]) -> None:
        group = TrialGroup(self._engine, trials, self._settings)
        try:
            while trial := group.next():
                group.judged(trial, self._reason_to_stop(trial))
            group.leave()
        except BaseException as error:
            trial = group.failed(error)
            try:
                with failing(trial.folder):
                    raise
            except Exception as told:  # one trial's failure, but for a metric that is nowhere, does not end the sweep
                if lost_gpu(told):
                    raise RunError(
                        f"{told}\nThis process can use its GPU no more, so no other trial is begun in it; resume goes"
                        " on in a new one"
                    ) from told
                group.leave()
                self._failed(trial.number, trial.values, str(told), metric_missing=isinstance(told, MetricMissing))

    def _reason_to_stop(self, trial: TrialUnderWay) -> str | None:
        report, name, rules = trial.last, trial.folder.name, self._rules
        assert report is not None
        if not trial.watch.holds(report):
            return None
        trial.made.append(report.metrics)
        self._announcer.reported(name, report.metrics)
        by_rule = rules.stops(name, {**report.metrics, "training_iteration": len(trial.made)}, trial.seconds)
        if report.final:
            return None
        if by_rule:
            return rules.reasons[name]
        by_scheduler = self._scheduler and self._scheduler.stops(trial.number, report.metrics, len(trial.made))
        return BY_SCHEDULER if by_scheduler else rules.budget_used()

    def _failed(self, number: int, values: Mapping[str, Any], error: str, *, metric_missing: bool = False) -> None:
        name = trial_name(number)
        self._search.ended(number, None)
        self._announcer.ended(name, values, error)
        self._index.keep(name)
        self._rules.trial_failed(name, error if metric_missing else None)


def _scheduler(settings: Sweep, sweep: RunFolder, previous: Mapping[int, PreviousTrial]) -> SequentialScheduler | None:
    """The sweep's scheduler, where it has one: Ray Tune's own, which takes a second to import."""
    if isinstance(settings.scheduler, Fifo | Race):
        return None
    set_environment(None)
    from orchestrator.sweeps.tune.schedulers import SequentialScheduler

    return SequentialScheduler(settings, History(sweep), previous)
