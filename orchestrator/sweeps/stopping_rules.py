"""Rules that stop a trial early. Used in the driver; does not need Ray."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.experiment.sections.sweep import Plateau, Stop, SweepSettings
from orchestrator.sweeps.budget import BudgetUse
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


class StoppingRules:
    """Rules of `stop` and of the search, applied to the sweep's first metric in each report. They
    count the samples of each report in the sweep's budget."""

    def __init__(self, settings: SweepSettings, search: Search, budget: BudgetUse) -> None:
        self._stop = settings.stop or Stop()
        self._metric, mode = settings.objectives[0]
        self._sign = 1 if mode == "max" else -1
        self._search = search
        self._budget = budget
        self._trials: defaultdict[int, _Progress] = defaultdict(_Progress)

    def replay(self, previous: Mapping[int, TrialRecord]) -> None:
        """Count the reports of earlier attempts."""
        trainings: defaultdict[str, list[int]] = defaultdict(list)
        for number, trial in previous.items():
            trainings[trial.leader or trial.name].append(number)
        for numbers in trainings.values():
            self._budget.share_training(numbers)
        for number, trial in previous.items():
            for count, metrics in enumerate(trial.compared_reports, 1):
                self._count_report(number, count, metrics)

    def has_reports(self) -> bool:
        """Return whether any trial has reported the sweep's metrics."""
        return any(progress.reports for progress in self._trials.values())

    def count_reports(self, number: int) -> int:
        return self._trials[number].reports

    def add_report(
        self, number: int, count: int, metrics: Mapping[str, Any], seconds: float
    ) -> str | None:
        """Count the `count`-th report of a trial, `seconds` into its training, and pass it to the
        search; return the reason to stop the trial, or None."""
        self._count_report(number, count, metrics)
        # The search gets every report, even if another rule stops the trial.
        reason_of_search = self._search.record_report(number, metrics)
        reason = self._find_reason(self._trials[number], metrics[self._metric], seconds)
        return reason or reason_of_search

    def _count_report(self, number: int, count: int, metrics: Mapping[str, Any]) -> None:
        progress = self._trials[number]
        if count <= progress.reports:
            return  # repeated after a process was replaced
        progress.reports = count
        self._budget.count_samples(number, metrics.get("samples", 0))

        progress.reports_without_gain += 1
        value = metrics[self._metric]
        plateau = self._stop.plateau or Plateau()
        gain = self._sign * (value - progress.best)
        if math.isfinite(value) and (math.isnan(progress.best) or gain > plateau.min_delta):
            progress.best = value
            progress.reports_without_gain = 0

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
