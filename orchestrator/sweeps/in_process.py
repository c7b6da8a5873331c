"""A sweep in this process, without starting Ray: one rank, one trial after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from orchestrator.config.experiment import Experiment
from orchestrator.config.sweep import Fifo, Sweep
from orchestrator.engines.in_process import InProcess
from orchestrator.engines.lifecycle import Lifecycle, failing
from orchestrator.engines.rank_failures import lost_gpu
from orchestrator.engines.ray_environment import set_environment
from orchestrator.engines.session import Assignment
from orchestrator.errors import ConfigError, MetricMissing, RunError
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import trial_name
from orchestrator.stats.trial_index import TrialIndex
from orchestrator.sweeps.metric_watch import MetricWatch
from orchestrator.sweeps.results.population_history import History
from orchestrator.sweeps.results.previous_trials import PreviousTrial, judged_reports, training_seconds
from orchestrator.sweeps.search.search import TRIAL, make_search
from orchestrator.sweeps.stopping_rules import BY_SCHEDULER, StoppingRules
from orchestrator.sweeps.trial_announcer import TrialAnnouncer
from orchestrator.sweeps.trial_setup import begin_trial

if TYPE_CHECKING:
    from orchestrator.sweeps.tune.schedulers import SequentialScheduler


def run_trials(
    experiment: Experiment,
    settings: Sweep,
    sweep: RunFolder,
    previous: Mapping[int, PreviousTrial],
    rules: StoppingRules,
    announcer: TrialAnnouncer,
    index: TrialIndex,
    end_standing: Callable[[str], None] | None = None,
) -> None:
    """Runs the trials in turn, until all are over or the budget is used up; one that fails is written down and the
    next one begins, unless the sweep is to end then."""
    scheduler, search = _scheduler(settings, sweep, previous), make_search(settings, experiment.seed, previous)
    for trial_id in map(str, range(search.count)):
        if rules.sweep_is_over():
            return
        number, values = search.suggest(trial_id)[TRIAL].values()
        try:
            trial, folder = begin_trial(sweep.location, number, experiment.source, settings, values)
        except ConfigError as error:
            search.on_trial_complete(trial_id, error=True)
            announcer.ended(trial_name(number), values, str(error))
            index.keep(trial_name(number))
            rules.trial_failed(trial_name(number))
            continue
        announcer.begins(folder.name, values)
        assignment = Assignment(trial.experiment.source, folder.location, sweep=settings.model_dump(mode="json"))
        life = Lifecycle(InProcess(experiment.workers, stop_asked=rules.asked, end_standing=end_standing), assignment, trial)
        made, failure = judged_reports(folder, settings), None
        watch = MetricWatch(settings, trial, life, judged=bool(made))
        if scheduler:
            scheduler.begins(number)
        try:
            with failing(folder):
                _train(life, watch, made, announcer, rules, scheduler)
        except Exception as error:  # one trial's failure, but for a metric that is nowhere, does not end the sweep
            if lost_gpu(error):
                raise RunError(f"{error}\nThis process can use its GPU no more, so no other trial is begun in it; resume goes on in a new one") from error
            failure = str(error)
            rules.trial_failed(folder.name, failure if isinstance(error, MetricMissing) else None)
        last = made[-1] if made else None
        if scheduler:
            scheduler.ended(last, len(made))
        search.on_trial_complete(trial_id, dict(last) if last else None, error=failure is not None)
        announcer.ended(folder.name, values, failure)
        index.keep(folder.name)


def _train(
    life: Lifecycle,
    watch: MetricWatch,
    made: list[Mapping[str, Any]],
    announcer: TrialAnnouncer,
    rules: StoppingRules,
    scheduler: SequentialScheduler | None,
) -> None:
    """Trains a trial to its end, or to the report with which it is to be stopped; adds to those it has `made` that hold the
    sweep's metrics."""
    trial, begun, last = life.folder.name, monotonic() - training_seconds(life.folder), None
    while report := life.next():
        last, metrics = report, report.metrics
        if not watch.holds(report):
            continue
        made.append(metrics)
        announcer.reported(trial, metrics)
        by_rule = rules.stops(trial, metrics, monotonic() - begun)
        if report.final:
            continue
        by_scheduler = not by_rule and scheduler and scheduler.stops(metrics, len(made))
        reason = rules.reasons[trial] if by_rule else BY_SCHEDULER if by_scheduler else rules.budget_used()
        if reason:
            return life.end("stopped", [reason])
    if not made and not (last and last.interrupted):
        raise watch.unjudged(last)
    return life.finish(last)


def _scheduler(settings: Sweep, sweep: RunFolder, previous: Mapping[int, PreviousTrial]) -> SequentialScheduler | None:
    """The sweep's scheduler, where it has one: Ray Tune's own, which takes a second to import."""
    if isinstance(settings.scheduler, Fifo):
        return None
    set_environment(None)
    from orchestrator.sweeps.tune.schedulers import SequentialScheduler

    return SequentialScheduler(settings, History(sweep), previous)
