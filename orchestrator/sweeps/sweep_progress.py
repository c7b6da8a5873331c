"""The progress of a sweep in the terminal: its active trials, those that have ended, and the best
value. Used in the driver."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from hooks.loop_services import Display
from orchestrator.disk.sweep_folder import trial_name
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.search.search import list_remaining_trials
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.units import format_parameter


class SweepProgress:
    """Progress of a sweep by its first metric, as lines of a display.

    `previous` are the trials of earlier attempts by number.
    """

    def __init__(
        self, display: Display, settings: SweepSettings, previous: Mapping[int, TrialRecord]
    ) -> None:
        self._display = display
        self._has_repeats = settings.repeat_count > 1
        self._metric, mode = settings.objectives[0]
        self._better: Callable[..., float] = max if mode == "max" else min
        self._active: set[int] = set()
        self._ended = sum(trial.has_ended for trial in previous.values())
        self._total = self._ended + len(list_remaining_trials(settings, previous))
        self._best: dict[int, float] = {}
        """Best value of each trial."""
        self._last: dict[int, Mapping[str, Any]] = {}
        """Last report of each trial, which may be of an earlier attempt."""
        for number, trial in previous.items():
            if trial.status != "failed":
                for report in trial.compared_reports:
                    self._keep(number, report)

    def list_active(self) -> list[int]:
        """Return the numbers of the trials that have begun and not ended."""
        return sorted(self._active)

    def begin(self, number: int, values: Mapping[str, Any]) -> None:
        """Show a line for a trial, unless it is active: it continues on new processes."""
        if number not in self._active:
            self._active.add(number)
            self._display.line(f"{trial_name(number)} begins: {_format_values(values)}")

    def add_report(self, number: int, report: Mapping[str, Any]) -> None:
        self._keep(number, report)
        self._show()

    def show_recovery(self, number: int, error: str) -> None:
        """Show that a trial lost a process and restarts."""
        action = "resumes from its newest checkpoint" if number in self._active else "begins"
        self._display.line(f"{trial_name(number)}: {error}; it {action} on new processes")

    def find_last_report(self, number: int) -> Mapping[str, Any] | None:
        """Return the last report of a trial that has not ended; None if it has none."""
        return self._last.get(number)

    def describe_best(self, number: int) -> str:
        """Return the metric and its best value in a trial."""
        return f"{self._metric} {self._best.get(number, math.nan):.4g}"

    def drop(self, number: int) -> None:
        """Leave a trial out of the best value, because it failed or breaks a constraint."""
        self._best.pop(number, None)

    def interrupt(self, number: int, values: Mapping[str, Any]) -> None:
        """Show that a trial was interrupted. It has not ended."""
        self._active.discard(number)
        self._display.line(f"{trial_name(number)} {_format_values(values)}: interrupted")

    def end(self, number: int, values: Mapping[str, Any], outcome: str) -> None:
        """Show that a trial has ended."""
        self._ended += 1
        self._active.discard(number)
        self._last.pop(number, None)
        count = f"[{self._ended}/{self._total}]"
        self._display.line(f"{trial_name(number)} {count} {_format_values(values)}: {outcome}")
        self._show()

    def _keep(self, number: int, report: Mapping[str, Any]) -> None:
        self._last[number] = report
        value = report[self._metric]
        if math.isfinite(value):
            self._best[number] = self._better(self._best.get(number, value), value)

    def _show(self) -> None:
        best = ""
        if self._best:
            label = "best trial" if self._has_repeats else "best"
            best = f"{label} {self._metric} {self._better(self._best.values()):.4g}"
        self._display.progress("trials", self._ended, self._total, best)


def _format_values(values: Mapping[str, Any]) -> str:
    return " ".join(f"{path}={format_parameter(value)}" for path, value in values.items())
