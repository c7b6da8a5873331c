"""The events of a running sweep's trials, for its search, its stopping rules and its index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_folder, trial_name
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.runs.alerts import Alerts
from orchestrator.sweeps.metric_monitor import summarize_missing_metrics
from orchestrator.sweeps.search.search import Search
from orchestrator.sweeps.stopping_rules import StoppingRules, describe_scheduler_stop
from orchestrator.sweeps.sweep_end import SweepEnd
from orchestrator.sweeps.sweep_progress import SweepProgress
from orchestrator.tables.constraints import Constraints, make_measured_cells
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord


@dataclass(frozen=True)
class RunningSweep:
    """Handler of the events of a sweep's trials, in this process or on Ray. Used in the driver."""

    experiment: Experiment
    folder: RunFolder
    previous: Mapping[int, TrialRecord]
    """The trials of earlier attempts by number."""
    search: Search
    rules: StoppingRules
    index: TrialIndex
    progress: SweepProgress
    alerts: Alerts
    end: SweepEnd
    fail_fast: bool = False
    """Whether any failed trial ends the sweep."""

    def __post_init__(self) -> None:
        for number, trial in self.previous.items():
            if trial.has_ended and self._constraints:
                self._drop_infeasible(number, self._measure(trial))

    @property
    def settings(self) -> SweepSettings:
        assert self.experiment.sweep is not None
        return self.experiment.sweep

    @cached_property
    def _constraints(self) -> Constraints:
        return Constraints(self.settings.constraints)

    def active_trials(self) -> list[RunFolder]:
        return [
            trial_folder(self.folder.location, number) for number in self.progress.list_active()
        ]

    def begin(self, trials: Mapping[int, Mapping[str, Any]]) -> None:
        """Register trials that start together, and show a line for each that is not active yet.

        A trial that continues on new processes begins again.

        Args:
            trials: The values of each trial, by its number. Several trials share a training run.
        """
        self.end.budget.share_training(trials)
        for number, values in trials.items():
            self.progress.begin(number, values)

    def record_report(self, number: int, metrics: Mapping[str, Any]) -> None:
        self.progress.add_report(number, metrics)
        self.alerts.check_report(metrics, trial_name(number))

    def record_end(
        self, number: int, values: Mapping[str, Any], *, interrupted: bool = False
    ) -> None:
        """Record the end of a trial. An interrupted trial has not ended."""
        if interrupted:
            self.search.record_pause(number)
            self.progress.interrupt(number, values)
            return

        last = self.progress.take_last_report(number)
        outcome = self.progress.describe_best(number)
        excesses: Sequence[float] = ()
        if self._constraints:
            cells = self._measure(self._read(trial_name(number)))
            excesses = self._constraints.measure(cells)
            broken = self._drop_infeasible(number, cells)
            if broken:
                outcome += f", infeasible: {broken}"
        self.search.record_end(number, last, excesses)
        self.progress.end(number, values, outcome)
        self.index.keep(trial_name(number))

    def record_failure(
        self, number: int, values: Mapping[str, Any], error: str, *, metric_missing: bool
    ) -> None:
        """Record the failure of a trial, which may be that its reports lack the sweep's metric. That
        ends the sweep if no trial has reported it."""
        name = trial_name(number)
        self.search.record_end(number, None)
        self.progress.drop(number)
        self.progress.take_last_report(number)
        if metric_missing and not self.rules.has_reports():
            self.end.add_missing_metric(name, error)
        elif self.fail_fast or self.end.metric_missing:
            self.end.add_failure(name)
        self.alerts.send_once("failed", f"({name}) has failed: {error}")

        shown = error
        if metric_missing and self.end.metric_missing is not None:
            # The sweep ends with the same error, which has the metrics that there are.
            shown = summarize_missing_metrics(self.settings)
        self.progress.end(number, values, f"failed: {shown}")
        self.index.keep(name)

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
        """Return which constraints a trial breaks, and leave it out of the best value then."""
        broken = self._constraints.describe_broken(cells)
        if broken:
            self.progress.drop(number)
        return broken
