"""A sweep in this process, without starting Ray: one rank, one trial after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from orchestrator.config.experiment import Experiment
from orchestrator.config.sweep import Fifo, Sweep
from orchestrator.engines.in_process import InProcess
from orchestrator.engines.lifecycle import Lifecycle, failing
from orchestrator.engines.ray_environment import set_environment
from orchestrator.engines.session import Assignment
from orchestrator.errors import ConfigError
from orchestrator.loop.report import Report
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import trial_name, trial_number
from orchestrator.sweeps.results.population_history import History
from orchestrator.sweeps.results.previous_trials import Past, judged_reports, seconds_of, seconds_used
from orchestrator.sweeps.search.search import Draws
from orchestrator.sweeps.stopping_rules import Stopping
from orchestrator.sweeps.trial_announcer import Watcher
from orchestrator.sweeps.trial_setup import BY_SCHEDULER, begin_trial, unjudged

if TYPE_CHECKING:
    from orchestrator.sweeps.tune.schedulers import OneAfterTheOther


def run_trials(
    experiment: Experiment,
    settings: Sweep,
    location: str,
    watcher: Watcher,
    stop_asked: Callable[[], bool],
    *,
    past: Mapping[int, Past],
    fail_fast: bool = False,
) -> None:
    """Runs the trials in turn, until all are over or the budget is used up; one that fails is written down and the
    next one begins, unless the sweep is to end then."""
    stopping, sweep = Stopping(settings), RunFolder(location)
    stopping.told({trial_name(number): trial.reports for number, trial in past.items()}, seconds_used(sweep))
    scheduler = _scheduler(settings, sweep, past)
    draws = Draws(settings, experiment.seed, past)
    for number, values in draws:
        if stop_asked() or stopping.budget_used():
            return
        try:
            trial, folder = begin_trial(location, number, experiment.source, settings, values)
        except ConfigError as error:
            draws.over(number, None)
            watcher.ended(trial_name(number), values, str(error))
            if fail_fast:
                return
            continue
        watcher.begins(folder.name, values)
        judge = _Judge(settings, folder, watcher, stopping, scheduler)
        assignment = Assignment(trial.experiment.source, folder.location, sweep=settings.model_dump(mode="json"))
        life, failure = Lifecycle(InProcess(experiment.workers, stop_asked=stop_asked), assignment, trial), None
        try:
            with failing(folder):
                _train(life, judge)
        except Exception as error:  # one trial's failure, whatever it is, does not end the sweep
            failure = str(error)
        judge.over()
        draws.over(number, None if failure else judge.last)
        watcher.ended(folder.name, values, failure)
        if failure and fail_fast:
            return


def _train(life: Lifecycle, judge: _Judge) -> None:
    """Trains a trial to its end, or to the report with which it is to be stopped."""
    last = None
    while report := life.next():
        last = report
        reason = judge.reported(report)
        if reason and not report.final:
            return life.end("stopped", [reason])
    if judge.last is None and not (last and last.interrupted):
        life.leave()
        raise unjudged(judge.settings, last)
    return life.finish(last)


class _Judge:
    """Whether a trial goes on after a report: by the sweep's rules, its scheduler and its budget."""

    def __init__(
        self, settings: Sweep, folder: RunFolder, watcher: Watcher, stopping: Stopping, scheduler: OneAfterTheOther | None
    ) -> None:
        self.settings = settings
        self._trial, self._watcher, self._stopping, self._scheduler = folder.name, watcher, stopping, scheduler
        self._made = judged_reports(folder, settings)
        self._begun = monotonic() - seconds_of(folder)
        if scheduler:
            scheduler.begins(trial_number(folder))

    @property
    def last(self) -> Mapping[str, Any] | None:
        """The last report with the sweep's metrics."""
        return self._made[-1] if self._made else None

    def reported(self, report: Report) -> str | None:
        """Why the trial is to be stopped with this report, if it is."""
        metrics = report.metrics
        if not all(metric in metrics for metric, _ in self.settings.objectives):
            return None
        self._made.append(metrics)
        self._watcher.reported(self._trial, metrics)
        if self._stopping.reported(self._trial, metrics, monotonic() - self._begun):
            return self._stopping.reasons[self._trial]
        if self._scheduler and not report.final and self._scheduler.stops(metrics, len(self._made)):
            return BY_SCHEDULER
        return self._stopping.budget_used()

    def over(self) -> None:
        """The trial has ended."""
        if self._scheduler:
            self._scheduler.ended(self.last, len(self._made))


def _scheduler(settings: Sweep, sweep: RunFolder, past: Mapping[int, Past]) -> OneAfterTheOther | None:
    """The sweep's scheduler, where it has one: Ray Tune's own, which takes a second to import."""
    if isinstance(settings.scheduler, Fifo):
        return None
    set_environment(None)
    from orchestrator.sweeps.tune.schedulers import OneAfterTheOther

    return OneAfterTheOther(settings, History(sweep), past)
