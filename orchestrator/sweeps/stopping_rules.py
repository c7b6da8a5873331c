"""Rules that stop a trial early, and limits that end the sweep. Used in the driver; does not need
Ray."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from orchestrator.disk.sweep_folder import trial_number
from orchestrator.experiment.sections.sweep import Budget, Plateau, Stop, SweepSettings
from orchestrator.sweeps.search.search import Search
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.units import format_count


def describe_scheduler_stop(settings: SweepSettings, reports: int) -> str:
    """Return the reason of a trial that the scheduler stopped after some reports."""
    return f"{settings.scheduler.type} ended the trial after report {reports}"


@dataclass
class _Progress:
    """Progress of one trial."""

    reports: int = 0
    best: float = math.nan
    reports_without_gain: int = 0
    samples: int = 0
    training: list["_Progress"] = field(default_factory=list)
    """Progress of the trials that share its training run, itself included."""


class StoppingRules:
    """Rules of `stop`, `budget` and the search, applied to the sweep's first metric in each report.

    Each trial has `ranks` ranks. The sweep ends when its budget is used up, when `stop_requested`
    returns True, when the reports of a trial lack the metric, and with `fail_fast` when any trial
    fails.
    """

    def __init__(
        self,
        settings: SweepSettings,
        ranks: int = 1,
        *,
        search: Search | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        fail_fast: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.stop_requested = stop_requested
        self._settings = settings
        self._fail_fast = fail_fast
        self._search = search
        self._stop = settings.stop or Stop()
        self._budget = settings.budget or Budget()
        self._metric, mode = settings.objectives[0]
        self._sign = 1 if mode == "max" else -1
        self._ranks = ranks
        self._clock = clock
        self._started_at = clock()
        self._trials: defaultdict[str, _Progress] = defaultdict(_Progress)
        self._samples = 0
        self._failed_trial: str | None = None
        self._used_budget: str | None = None
        self.metric_missing: str | None = None
        """Error of a trial whose reports lack the sweep's metric, if no other trial has reported
        it."""
        self.reasons: dict[str, str] = {}
        """Reason why each stopped trial was stopped."""

    def replay(self, previous: Collection[TrialRecord], seconds: float) -> None:
        """Count the reports and the time of earlier attempts."""
        trainings: defaultdict[str, list[str]] = defaultdict(list)
        for trial in previous:
            trainings[trial.leader or trial.name].append(trial.name)
        for trials in trainings.values():
            self.share_training(trials)
        for trial in previous:
            for metrics in trial.compared_reports:
                self._count_report(self._trials[trial.name], metrics)
        self._started_at -= seconds

    def share_training(self, trials: Iterable[str]) -> None:
        """Count the samples of these trials once from now on, because they share a training run."""
        training = [self._trials[trial] for trial in trials]
        for progress in training:
            progress.training = training

    def should_stop(self, trial: str, metrics: Mapping[str, Any], seconds: float) -> bool:
        """Return whether a trial should stop at this report, `seconds` into its training, and
        record the reason."""
        progress = self._trials[trial]
        self._count_report(progress, metrics)
        # The search gets every report, even if another rule stops the trial.
        reason_of_search = None
        if self._search:
            reason_of_search = self._search.record_report(trial_number(trial), metrics)
        reason = self._find_reason(progress, metrics[self._metric], seconds) or reason_of_search
        if reason:
            self.reasons[trial] = reason
        return reason is not None

    def _count_report(self, progress: _Progress, metrics: Mapping[str, Any]) -> None:
        number = metrics.get("training_iteration", progress.reports + 1)
        if number <= progress.reports:
            return  # repeated after a process was replaced
        progress.reports = number
        progress.reports_without_gain += 1
        value = metrics[self._metric]
        plateau = self._stop.plateau or Plateau()
        gain = self._sign * (value - progress.best)
        if math.isfinite(value) and (math.isnan(progress.best) or gain > plateau.min_delta):
            progress.best = value
            progress.reports_without_gain = 0

        # A trial that continues from another trial's checkpoint may have fewer samples than before.
        samples = metrics.get("samples", 0)
        counted = max((shared.samples for shared in progress.training), default=progress.samples)
        self._samples += max(0, samples - counted) * self._ranks
        progress.samples = samples

    def _find_reason(self, progress: _Progress, value: float, seconds: float) -> str | None:
        stop = self._stop
        if stop.target is not None and self._has_reached(stop.target, value):
            return f"{self._metric} {value:g} reached the target {stop.target:g}"
        if stop.max_reports is not None and progress.reports >= stop.max_reports:
            return f"max_reports: {stop.max_reports} reached"
        if stop.time is not None and seconds >= stop.time:
            return f"trained for {seconds:.0f} s of {stop.time:g} s"
        return self._find_plateau(progress)

    def _has_reached(self, target: float, value: float) -> bool:
        return math.isfinite(value) and self._sign * (value - target) >= 0

    def _find_plateau(self, progress: _Progress) -> str | None:
        plateau = self._stop.plateau
        if plateau is None or progress.reports <= plateau.grace_period:
            return None
        count = progress.reports_without_gain
        if count < plateau.patience:
            return None
        return (
            f"{self._metric} has not improved on {progress.best:g} by more than"
            f" {plateau.min_delta:g} in {format_count(count, 'report')}"
        )

    def budget_used(self) -> str | None:
        """Return the reason if a budget of the sweep is used up."""
        if self._budget.time is not None and self._clock() - self._started_at >= self._budget.time:
            return f"the sweep's budget of {self._budget.time:g} s is used up"
        if self._budget.samples is not None and self._samples >= self._budget.samples:
            return (
                f"the sweep's budget of {format_count(self._budget.samples, 'sample')} is used up"
            )
        return None

    def trial_failed(self, trial: str, metric_missing: str | None = None) -> None:
        """Count a failed trial; `metric_missing` is its error if its reports lack the sweep's
        metric."""
        if metric_missing and not any(progress.reports for progress in self._trials.values()):
            self.metric_missing = metric_missing
        if self._fail_fast or self.metric_missing:
            self._failed_trial = trial

    def should_end_sweep(self) -> bool:
        self._used_budget = self._used_budget or self.budget_used()
        if self._used_budget or self._failed_trial:
            return True
        return self.stop_requested()

    def ending(self, trial: str) -> tuple[str, str]:
        """Return the status of a trial that the driver ended, and the reason."""
        if trial in self.reasons:
            return "stopped", self.reasons[trial]
        if self._used_budget:
            return "stopped", self._used_budget
        if self._failed_trial:
            return "interrupted", f"{self._failed_trial} failed, which ends the sweep"
        if self.stop_requested():
            return "interrupted", "interrupted"
        return "stopped", describe_scheduler_stop(self._settings, self._trials[trial].reports)
