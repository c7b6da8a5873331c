"""State of a running sweep: the search, the stopping rules, the index of trials, and the terminal
output."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hooks.loop_services import Display
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_folder, trial_name
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.sections.search import OptunaSearch
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.shared_training import find_shared_paths
from orchestrator.runs.alerts import Alerts
from orchestrator.sweeps.metric_monitor import summarize_missing_metrics
from orchestrator.sweeps.search.optuna_trials import OptunaTrials
from orchestrator.sweeps.search.race import RacingTrials
from orchestrator.sweeps.search.search import (
    DrawnTrials,
    Search,
    list_remaining_trials,
)
from orchestrator.sweeps.stopping_rules import StoppingRules, describe_scheduler_stop
from orchestrator.sweeps.sweep_end import SweepEnd
from orchestrator.tables.constraints import Constraints, make_measured_cells
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.units import format_parameter


class RunningSweep:
    """Handler of the events of a sweep's trials, in this process or on Ray. Used in the driver.

    `previous` are the trials of earlier attempts by number. With `fail_fast`, any failed trial ends
    the sweep.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        previous: Mapping[int, TrialRecord],
        display: Display,
        alerts: Alerts,
        end: SweepEnd,
        *,
        fail_fast: bool = False,
    ) -> None:
        assert experiment.sweep is not None
        self.experiment = experiment
        self.settings = experiment.sweep
        self.folder = folder
        self.previous = previous
        self.search = _make_search(experiment, self.settings, previous, display)
        self.index = TrialIndex(folder, self.settings.objectives)
        self.rules = StoppingRules(self.settings, self.search, end.budget)
        self.rules.replay(previous)
        self.end = end
        self.metric_missing: str | None = None
        """Error of a trial whose reports lack the sweep's metric, if no other trial has reported
        it."""
        self._fail_fast = fail_fast
        self._display = display
        self._alerts = alerts
        self._metric, mode = self.settings.objectives[0]
        self._better: Callable[..., float] = max if mode == "max" else min
        self._constraints = Constraints(self.settings.constraints)
        self._ended = sum(trial.has_ended for trial in previous.values())
        self._total = self._ended + len(list_remaining_trials(self.settings, previous))
        self._active: set[int] = set()
        self._best: dict[int, float] = {}
        """Best value of each trial."""
        self._last: dict[int, Mapping[str, Any]] = {}
        """Last report of each trial, which may be of an earlier attempt."""
        for number, trial in previous.items():
            if trial.status != "failed":
                for report in trial.compared_reports:
                    self._keep(number, report)
            if trial.has_ended and self._constraints:
                self._drop_infeasible(number, self._measure(trial))

    def active_trials(self) -> list[RunFolder]:
        return [trial_folder(self.folder.location, number) for number in sorted(self._active)]

    def begin(self, trials: Mapping[int, Mapping[str, Any]]) -> None:
        """Register trials that start together, and show a line for each that is not active yet.

        A trial that continues on new processes begins again.

        Args:
            trials: The values of each trial, by its number. Several trials share a training run.
        """
        self.end.budget.share_training(trials)
        for number, values in trials.items():
            if number not in self._active:
                self._active.add(number)
                self._display.line(f"{trial_name(number)} begins: {_format_values(values)}")

    def record_report(self, number: int, metrics: Mapping[str, Any]) -> None:
        self._keep(number, metrics)
        self._alerts.check_report(metrics, trial_name(number))
        self._show_progress()

    def show_recovery(self, number: int, error: str) -> None:
        """Show that a trial lost a process and restarts."""
        action = "resumes from its newest checkpoint" if number in self._active else "begins"
        self._display.line(f"{trial_name(number)}: {error}; it {action} on new processes")

    def record_end(
        self, number: int, values: Mapping[str, Any], *, interrupted: bool = False
    ) -> None:
        """Record the end of a trial. An interrupted trial has not ended."""
        if interrupted:
            self.search.record_pause(number)
            self._active.discard(number)
            self._display.line(f"{trial_name(number)} {_format_values(values)}: interrupted")
            return
        last = self._last.pop(number, None)
        outcome = f"{self._metric} {self._best.get(number, math.nan):.4g}"
        excesses: Sequence[float] = ()
        if self._constraints:
            cells = self._measure(self._read(trial_name(number)))
            excesses = self._constraints.measure(cells)
            broken = self._drop_infeasible(number, cells)
            if broken:
                outcome += f", infeasible: {broken}"
        self.search.record_end(number, last, excesses)
        self._end(number, values, outcome)

    def record_failure(
        self, number: int, values: Mapping[str, Any], error: str, *, metric_missing: bool
    ) -> None:
        """Record the failure of a trial, which may be that its reports lack the sweep's metric. That
        ends the sweep if no trial has reported it."""
        self.search.record_end(number, None)
        self._best.pop(number, None)
        self._last.pop(number, None)
        if metric_missing and not self.rules.has_reports():
            self.metric_missing = error
        if self._fail_fast or self.metric_missing:
            self.end.add_failure(trial_name(number))
        self._alerts.send_once("failed", f"({trial_name(number)}) has failed: {error}")
        # The sweep ends with the same error, which has the metrics that there are.
        is_repeated = metric_missing and self.metric_missing is not None
        shown = summarize_missing_metrics(self.settings) if is_repeated else error
        self._end(number, values, f"failed: {shown}")

    def find_ending(self, number: int) -> tuple[str, str]:
        """Return the status of a trial that the driver ended, and the reason."""
        if number in self.rules.reasons:
            return "stopped", self.rules.reasons[number]
        if self.end.outcome:
            return self.end.outcome
        reports = self.rules.count_reports(number)
        return "stopped", describe_scheduler_stop(self.settings, reports)

    def _read(self, trial: str) -> TrialRecord:
        folder = RunFolder(self.folder.storage / "trials", trial)
        return TrialRecord.read(folder, self.settings.objectives)

    def _measure(self, trial: TrialRecord) -> dict[str, Any]:
        """Return what an ended trial measured, by column of the table of trials."""
        leader = self._read(trial.leader) if trial.leader else None
        return make_measured_cells(trial, leader)

    def _drop_infeasible(self, number: int, cells: Mapping[str, Any]) -> str | None:
        """Return which constraints a trial breaks, and drop its best value then."""
        broken = self._constraints.describe_broken(cells)
        if broken:
            self._best.pop(number, None)
        return broken

    def _end(self, number: int, values: Mapping[str, Any], outcome: str) -> None:
        self._ended += 1
        self._active.discard(number)
        name = trial_name(number)
        self._display.line(
            f"{name} [{self._ended}/{self._total}] {_format_values(values)}: {outcome}"
        )
        self._show_progress()
        self.index.keep(name)

    def _show_progress(self) -> None:
        best = ""
        if self._best:
            label = "best trial" if self.settings.repeat_count > 1 else "best"
            best = f"{label} {self._metric} {self._better(self._best.values()):.4g}"
        self._display.progress("trials", self._ended, self._total, best)

    def _keep(self, number: int, report: Mapping[str, Any]) -> None:
        self._last[number] = report
        value = report[self._metric]
        if math.isfinite(value):
            self._best[number] = self._better(self._best.get(number, value), value)


def _make_search(
    experiment: Experiment,
    settings: SweepSettings,
    previous: Mapping[int, TrialRecord],
    display: Display,
) -> Search:
    if isinstance(settings.scheduler, Race):
        return RacingTrials(settings, experiment.seed, previous, display.line)
    shared = find_shared_paths(experiment.source, settings)
    search = settings.search
    if isinstance(search, OptunaSearch):
        return OptunaTrials(settings, search, experiment.seed, previous, shared)
    return DrawnTrials(settings, experiment.seed, previous, shared)


def _format_values(values: Mapping[str, Any]) -> str:
    return " ".join(f"{path}={format_parameter(value)}" for path, value in values.items())
