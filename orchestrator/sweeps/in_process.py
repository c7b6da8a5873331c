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
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import trial_name
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
        assignment = Assignment(trial.experiment.source, folder.location, sweep=settings.model_dump(mode="json"))
        life = Lifecycle(InProcess(experiment.workers, stop_asked=stop_asked), assignment, trial)
        made, failure = judged_reports(folder, settings), None
        if scheduler:
            scheduler.begins(number)
        try:
            with failing(folder):
                _train(life, settings, made, watcher, stopping, scheduler)
        except Exception as error:  # one trial's failure, whatever it is, does not end the sweep
            failure = str(error)
        last = made[-1] if made else None
        if scheduler:
            scheduler.ended(last, len(made))
        draws.over(number, None if failure else last)
        watcher.ended(folder.name, values, failure)
        if failure and fail_fast:
            return


def _train(
    life: Lifecycle,
    settings: Sweep,
    made: list[Mapping[str, Any]],
    watcher: Watcher,
    stopping: Stopping,
    scheduler: OneAfterTheOther | None,
) -> None:
    """Trains a trial to its end, or to the report with which it is to be stopped; adds to those it has `made` that hold the
    sweep's metrics."""
    trial, begun, last = life.folder.name, monotonic() - seconds_of(life.folder), None
    while report := life.next():
        last, metrics = report, report.metrics
        if not all(metric in metrics for metric, _ in settings.objectives):
            continue
        made.append(metrics)
        watcher.reported(trial, metrics)
        by_rule = stopping.reported(trial, metrics, monotonic() - begun)
        if report.final:
            continue
        by_scheduler = not by_rule and scheduler and scheduler.stops(metrics, len(made))
        reason = stopping.reasons[trial] if by_rule else BY_SCHEDULER if by_scheduler else stopping.budget_used()
        if reason:
            return life.end("stopped", [reason])
    if not made and not (last and last.interrupted):
        life.leave()
        raise unjudged(settings, last)
    return life.finish(last)


def _scheduler(settings: Sweep, sweep: RunFolder, past: Mapping[int, Past]) -> OneAfterTheOther | None:
    """The sweep's scheduler, where it has one: Ray Tune's own, which takes a second to import."""
    if isinstance(settings.scheduler, Fifo):
        return None
    set_environment(None)
    from orchestrator.sweeps.tune.schedulers import OneAfterTheOther

    return OneAfterTheOther(settings, History(sweep), past)
