"""A sweep in this process, without starting Ray: one rank, one trial after the other, each without a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from orchestrator.config.experiment import Experiment
from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.config.sweep import Sweep
from orchestrator.engines.in_process import only_rank
from orchestrator.engines.rank_failures import RankFailed, traceback_of
from orchestrator.engines.session import Assignment, reports
from orchestrator.errors import ConfigError, HookyardError
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import trial_name
from orchestrator.stats.tables import compact
from orchestrator.sweeps.results.previous_trials import Past, judged_reports, seconds_of, seconds_used
from orchestrator.sweeps.search.search import Draws
from orchestrator.sweeps.stopping_rules import Stopping
from orchestrator.sweeps.trial_announcer import Watcher
from orchestrator.sweeps.trial_setup import begin_trial


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
    stopping = Stopping(settings)
    stopping.told({trial_name(number): trial.reports for number, trial in past.items()}, seconds_used(RunFolder(location)))
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
        last, failure = _run_trial(trial, settings, folder, watcher, stopping, stop_asked)
        draws.over(number, None if failure else last)
        watcher.ended(folder.name, values, failure)
        if failure and fail_fast:
            return


def _run_trial(
    trial: ResolvedExperiment,
    settings: Sweep,
    folder: RunFolder,
    watcher: Watcher,
    stopping: Stopping,
    stop_asked: Callable[[], bool],
) -> tuple[Mapping[str, Any] | None, str | None]:
    """The last report with the sweep's metrics, and the failure, where there are any."""
    assignment = Assignment(trial.experiment.source, folder.location, sweep=settings.model_dump(mode="json"))
    metrics = [metric for metric, _ in settings.objectives]
    made = judged_reports(folder, settings)
    last, status, stopped, begun = made[-1] if made else None, "finished", [], monotonic() - seconds_of(folder)
    training = reports(assignment, only_rank(trial.experiment), trial, stop_asked=stop_asked)
    try:
        for report in training:
            if report.stopped:
                status, stopped = "interrupted" if report.interrupted else "stopped", list(report.stopped)
            if all(metric in report.metrics for metric in metrics):
                last = report.metrics
                watcher.reported(folder.name, last)
                over = stopping.reported(folder.name, last, monotonic() - begun)
                reason = stopping.reasons[folder.name] if over else stopping.budget_used()
                if reason and not report.final:
                    status, stopped = "stopped", [reason]
                    break
        training.close()
    except Exception as error:  # one trial's failure, whatever it is, does not end the sweep
        failure = error if isinstance(error, HookyardError) else RankFailed.told(0, error)
        folder.end("failed", error=str(failure))
        folder.log(traceback_of(failure))
        return last, str(failure)
    if status != "interrupted":
        compact(folder.storage, folder.attempts())
    folder.end(status, stopped=stopped, error=None)
    return last, None
