"""The progress of a sweep in the terminal: what its trials do, how many have ended, and the best
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

    `previous` are the trials of earlier attempts by number. `replay` counts their values.
    """

    def __init__(
        self, display: Display, settings: SweepSettings, previous: Mapping[int, TrialRecord]
    ) -> None:
        self._display = display
        self._has_repeats = settings.repeat_count > 1
        self._metric, mode = settings.objectives[0]
        self._better: Callable[..., float] = max if mode == "max" else min
        self._ended = sum(trial.has_ended for trial in previous.values())
        self._total = self._ended + len(list_remaining_trials(settings, previous))
        self._best: dict[int, float] = {}
        """Best value of each trial that counts."""

    def replay(self, trials: Mapping[int, TrialRecord]) -> None:
        """Count the best values of trials of earlier attempts, none of which failed or breaks a
        constraint."""
        for number, trial in trials.items():
            for report in trial.compared_reports:
                self._update_best(number, report)

    def begin(self, number: int, values: Mapping[str, Any]) -> None:
        """Show that a trial begins."""
        self._display.line(f"{trial_name(number)} begins: {_format_values(values)}")

    def add_report(self, number: int, report: Mapping[str, Any]) -> None:
        self._update_best(number, report)
        self._show()

    def show_recovery(self, number: int, error: str, *, has_begun: bool) -> None:
        """Show that a trial lost a process and restarts."""
        action = "resumes from its newest checkpoint" if has_begun else "begins"
        self._display.line(f"{trial_name(number)}: {error}; it {action} on new processes")

    def describe_best(self, number: int) -> str:
        """Return the metric and its best value in a trial."""
        return f"{self._metric} {self._best.get(number, math.nan):.4g}"

    def drop(self, number: int) -> None:
        """Leave a trial out of the best value, because it failed or breaks a constraint."""
        self._best.pop(number, None)

    def interrupt(self, number: int, values: Mapping[str, Any]) -> None:
        """Show that a trial was interrupted. It has not ended."""
        self._display.line(f"{trial_name(number)} {_format_values(values)}: interrupted")

    def end(self, number: int, values: Mapping[str, Any], outcome: str) -> None:
        """Show that a trial has ended."""
        self._ended += 1
        count = f"[{self._ended}/{self._total}]"
        self._display.line(f"{trial_name(number)} {count} {_format_values(values)}: {outcome}")
        self._show()

    def _update_best(self, number: int, report: Mapping[str, Any]) -> None:
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
