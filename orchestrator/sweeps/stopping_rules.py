"""When a trial ends before its time, and when the sweep's budget is used up. Driver; needs no Ray."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from orchestrator.config.sections.sweep import Budget, Stop, Sweep
from orchestrator.records.sweep_folder import trial_number
from orchestrator.sweeps.search.search import Search

BY_SCHEDULER = "the scheduler ended the trial"


@dataclass
class _Progress:
    """How a trial has fared."""

    reports: int = 0
    best: float = math.nan
    without_gain: int = 0
    samples: int = 0


class StoppingRules:
    """Judges each report of each trial, by the first of the sweep's metrics, and whether the sweep goes on.

    `ranks` train each trial. The sweep ends when its budget is used up, when it is `asked` to, and with `fail_fast`
    when a trial has failed; and with the first that shows that its metric is nowhere.
    """

    def __init__(
        self,
        settings: Sweep,
        ranks: int = 1,
        *,
        search: Search | None = None,
        asked: Callable[[], bool] = lambda: False,
        fail_fast: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.asked, self._fail_fast, self._search = asked, fail_fast, search
        self._ended_by: str | None = None
        self.metric_missing: str | None = None
        """That the sweep's metric is in no report, once a trial has shown it and none has reported it."""
        self._used: str | None = None
        self._stop, self._budget = settings.stop or Stop(), settings.budget or Budget()
        self._metric, mode = settings.objectives[0]
        self._sign = 1 if mode == "max" else -1
        self._ranks, self._clock, self._begun = ranks, clock, clock()
        self._trials: dict[str, _Progress] = {}
        self._samples = 0
        self.reasons: dict[str, str] = {}
        """Trial to why it was stopped."""

    def replay_reports(self, reports: Mapping[str, Iterable[Mapping[str, Any]]], seconds: float) -> None:
        """What earlier attempts of the sweep have used: their trials' reports, and their time."""
        for trial, made in reports.items():
            for metrics in made:
                self._count_report(self._trials.setdefault(trial, _Progress()), metrics)
        self._begun -= seconds

    def stops(self, trial: str, metrics: Mapping[str, Any], seconds: float) -> bool:
        """Whether a trial ends with this report, `seconds` into its own training; the reason is kept."""
        progress = self._trials.setdefault(trial, _Progress())
        self._count_report(progress, metrics)
        # The search hears of each report, also of one that ends its trial by another rule.
        by_search = self._search.reported(trial_number(trial), metrics) if self._search else None
        reason = self._reason(progress, metrics[self._metric], seconds) or by_search
        if reason:
            self.reasons[trial] = reason
        return reason is not None

    def _count_report(self, progress: _Progress, metrics: Mapping[str, Any]) -> None:
        value, plateau = metrics[self._metric], self._stop.plateau
        number = metrics.get("training_iteration", progress.reports + 1)
        if number <= progress.reports:
            return  # made again, after its rank or process was replaced
        progress.reports = number
        improves = math.isnan(progress.best) or self._sign * (value - progress.best) > (
            plateau.min_delta if plateau else 0
        )
        progress.without_gain = 0 if improves else progress.without_gain + 1
        progress.best = value if improves else progress.best
        # A trial that goes on from another's checkpoint may have fewer than before.
        samples = metrics.get("samples", 0)
        self._samples += max(0, samples - progress.samples) * self._ranks
        progress.samples = samples

    def _reason(self, progress: _Progress, value: float, seconds: float) -> str | None:
        stop, metric = self._stop, self._metric
        if stop.target is not None and self._sign * (value - stop.target) >= 0:
            return f"{metric} is {value:g}, as good as the target {stop.target:g}"
        if stop.max_reports is not None and progress.reports >= stop.max_reports:
            return f"it has made max_reports={stop.max_reports} reports"
        if stop.time is not None and seconds >= stop.time:
            return f"it has trained for {seconds:.0f} s of {stop.time:g} s"
        plateau = stop.plateau
        if plateau and progress.reports > plateau.grace_period and progress.without_gain >= plateau.patience:
            return (
                f"{metric} has not improved on {progress.best:g} by more than {plateau.min_delta:g} in"
                f" {progress.without_gain} reports"
            )
        return None

    def budget_used(self) -> str | None:
        """Which budget of the sweep is used up, if one is: what runs is to be stopped."""
        if self._budget.time is not None and self._clock() - self._begun >= self._budget.time:
            return f"the sweep's budget of {self._budget.time:g} s is used up"
        if self._budget.samples is not None and self._samples >= self._budget.samples:
            return f"the sweep's budget of {self._budget.samples} samples is used up"
        return None

    def trial_failed(self, trial: str, metric_missing: str | None = None) -> None:
        """A trial has failed for good; `metric_missing` says so where it did as its reports lack the sweep's metric."""
        if metric_missing and not any(progress.reports for progress in self._trials.values()):
            self.metric_missing = metric_missing
        if self._fail_fast or self.metric_missing:
            self._ended_by = trial

    def sweep_is_over(self) -> bool:
        """Whether no trial goes on."""
        self._used = self._used or self.budget_used()
        return self._used is not None or self._ended_by is not None or self.asked()

    def ending(self, trial: str) -> tuple[str, str]:
        """Status and reason of a trial that was ended from outside."""
        if trial in self.reasons:
            return "stopped", self.reasons[trial]
        if self._used:
            return "stopped", self._used
        if self._ended_by:
            return "interrupted", f"{self._ended_by} failed, and the sweep was to end then"
        return ("interrupted", "interrupted") if self.asked() else ("stopped", BY_SCHEDULER)
