"""The announcer: shows how the trials of a sweep fare, in a line for each event. Driver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hooks.state import Display
from orchestrator.config.sections.sweep import Sweep
from orchestrator.records.sweep_folder import trial_name
from orchestrator.sweeps.results.previous_trials import PreviousTrial, remaining_trials


class TrialAnnouncer:
    """Hears of each trial when it begins, reports, recovers and ends, and shows lines of that and how far all are."""

    def __init__(self, display: Display, settings: Sweep, previous: Mapping[int, PreviousTrial]) -> None:
        self._ended = sum(trial.over for trial in previous.values())
        self._display, self._total = display, self._ended + len(remaining_trials(settings, previous))
        self._metric, mode = settings.objectives[0]
        self._whose = "best trial's" if settings.repeats > 1 else "best"
        self._best_of: Callable[..., float] = max if mode == "max" else min
        self._reached: dict[str, float] = {}
        """The best of each trial that is under way."""
        self._best = math.nan
        self._begun: set[str] = set()
        for number, trial in previous.items():
            for report in trial.reports:
                self._count_report(trial_name(number), report[self._metric])
            if trial.over:
                self._reached.pop(trial_name(number), None)

    def under_way(self) -> list[str]:
        """The trials that have begun and are not over."""
        return sorted(self._begun)

    def begins(self, trial: str, values: Mapping[str, Any]) -> None:
        """A trial is about to train; one that was paused, or is started again, has begun before."""
        if trial not in self._begun:
            self._begun.add(trial)
            self._display.line(f"{trial} begins: {_chosen(values)}")

    def reported(self, trial: str, metrics: Mapping[str, Any]) -> None:
        """A trial has reported."""
        self._count_report(trial, metrics[self._metric])
        self._show_progress()

    def recovers(self, trial: str, error: str) -> None:
        """A trial has lost a process, and is started again."""
        goes_on = "it goes on from its newest checkpoint" if trial in self._begun else "it begins"
        self._display.line(f"{trial}: {error}; {goes_on} on new processes")

    def ended(self, trial: str, values: Mapping[str, Any], error: str | None = None) -> None:
        """A trial is over."""
        self._ended += 1
        self._begun.discard(trial)
        best = self._reached.pop(trial, math.nan)
        reached = f"failed: {error}" if error else f"{self._metric} {best:.4g}"
        self._display.line(f"{trial} [{self._ended}/{self._total}] {_chosen(values)}: {reached}")
        self._show_progress()

    def _show_progress(self) -> None:
        best = "" if math.isnan(self._best) else f"{self._whose} {self._metric} {self._best:.4g}"
        self._display.progress("trials", self._ended, self._total, best)

    def _count_report(self, trial: str, value: float) -> None:
        if math.isfinite(value):
            self._reached[trial] = self._best_of(self._reached.get(trial, value), value)
            self._best = value if math.isnan(self._best) else self._best_of(self._best, value)


def _chosen(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{path}={value:.4g}" if isinstance(value, float) else f"{path}={value}" for path, value in values.items()
    )
