"""Shows a line for each event of a sweep's trials, and the progress of all. Driver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hooks.state import Display
from orchestrator.config.sections.sweep import Sweep
from orchestrator.records.sweep_folder import trial_name
from orchestrator.sweeps.results.previous_trials import PreviousTrial, remaining_trials


class TrialAnnouncer:
    """Shows when trials begin, report, restart and end."""

    def __init__(self, display: Display, settings: Sweep, previous: Mapping[int, PreviousTrial]) -> None:
        self._ended = sum(trial.over for trial in previous.values())
        self._display, self._total = display, self._ended + len(remaining_trials(settings, previous))
        self._metric, mode = settings.objectives[0]
        self._best_label = f"{'best trial' if settings.repeats > 1 else 'best'} {self._metric}"
        self._better: Callable[..., float] = max if mode == "max" else min
        self._best_of_trial: dict[str, float] = {}
        self._best = math.nan
        self._begun: set[str] = set()
        for number, trial in previous.items():
            for report in trial.reports:
                self._count_report(trial_name(number), report[self._metric])
            if trial.over:
                self._best_of_trial.pop(trial_name(number), None)

    def active_trials(self) -> list[str]:
        """Return the trials that have begun and are not over."""
        return sorted(self._begun)

    def begins(self, trial: str, values: Mapping[str, Any]) -> None:
        """Show that a trial begins, once."""
        if trial not in self._begun:
            self._begun.add(trial)
            self._display.line(f"{trial} begins: {_format_values(values)}")

    def reported(self, trial: str, metrics: Mapping[str, Any]) -> None:
        """Show the progress after a report."""
        self._count_report(trial, metrics[self._metric])
        self._show_progress()

    def recovers(self, trial: str, error: str) -> None:
        """Show that a trial lost a process and starts again."""
        how = "resumes from its newest checkpoint" if trial in self._begun else "begins"
        self._display.line(f"{trial}: {error}; it {how} on new processes")

    def ended(self, trial: str, values: Mapping[str, Any], error: str | None = None) -> None:
        """Show how a trial ended."""
        self._ended += 1
        self._begun.discard(trial)
        best = self._best_of_trial.pop(trial, math.nan)
        result = f"failed: {error}" if error else f"{self._metric} {best:.4g}"
        self._display.line(f"{trial} [{self._ended}/{self._total}] {_format_values(values)}: {result}")
        self._show_progress()

    def _show_progress(self) -> None:
        best = "" if math.isnan(self._best) else f"{self._best_label} {self._best:.4g}"
        self._display.progress("trials", self._ended, self._total, best)

    def _count_report(self, trial: str, value: float) -> None:
        if math.isfinite(value):
            self._best_of_trial[trial] = self._better(self._best_of_trial.get(trial, value), value)
            self._best = value if math.isnan(self._best) else self._better(self._best, value)


def _format_values(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{path}={value:.4g}" if isinstance(value, float) else f"{path}={value}" for path, value in values.items()
    )
