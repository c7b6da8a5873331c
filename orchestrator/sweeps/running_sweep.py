"""The events of a running sweep's trials, for its search, its stopping rules and its index."""

from collections.abc import Mapping
from typing import Any

from hooks.loop_services import Display
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import Status
from orchestrator.disk.sweep_folder import end_trial, trial_folder, trial_name, trial_number
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.runs.alerts import Alerts
from orchestrator.sweeps.active_reports import ActiveReports
from orchestrator.sweeps.feasibility import FeasibilityCheck
from orchestrator.sweeps.metric_monitor import summarize_missing_metrics
from orchestrator.sweeps.pruner import Pruner
from orchestrator.sweeps.search.choice import make_search
from orchestrator.sweeps.stopping_rules import StoppingRules, describe_scheduler_stop
from orchestrator.sweeps.sweep_end import SweepEnd
from orchestrator.sweeps.sweep_progress import SweepProgress
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord


class RunningSweep:
    """A sweep whose trials run in this process or on Ray. It decides which ones stop early, and
    shows and records what happens to them. Used in the driver."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        previous: Mapping[int, TrialRecord],
        display: Display,
        alerts: Alerts,
        end: SweepEnd,
    ) -> None:
        """Continue the search, the rules and the progress of earlier attempts.

        Args:
            experiment: An experiment with a `sweep`.
            folder: The sweep's folder.
            previous: The trials of earlier attempts by number.
            display: Where the trials are shown.
            alerts: What tells the user of reports and failures.
            end: What ends the sweep early.
        """
        assert experiment.sweep is not None
        self.experiment = experiment
        self.settings = experiment.sweep
        self.folder = folder
        self.previous = previous
        self._alerts = alerts
        self.end = end
        """Decides when no trial may begin or continue."""
        self.search = make_search(experiment, previous, display.line)
        """Suggests the next trial, to Tune too; it learns of the trials here."""
        self._rules = StoppingRules(self.settings, self.search, end.budget)
        self._rules.replay(previous)
        self._pruner = Pruner.make(self.settings, previous)
        self.reasons_to_stop: dict[int, str] = {}
        """Why trials are to stop early, by their numbers. It grows as they report."""
        self._failed: set[int] = set()
        """Numbers of the trials that have failed in this attempt of the sweep."""
        self._index = TrialIndex(folder, self.settings.objectives)
        self._reports = ActiveReports(previous)
        self._progress = SweepProgress(display, self.settings, previous)
        self._feasibility = FeasibilityCheck(folder, self.settings)
        self._progress.replay(self._select_comparable(previous))

    def _select_comparable(self, trials: Mapping[int, TrialRecord]) -> dict[int, TrialRecord]:
        """Return the trials that did not fail, without those that ended beyond a constraint."""
        comparable = {}
        for number, trial in trials.items():
            is_infeasible = trial.has_ended and self._feasibility.check(trial).broken
            if trial.status != "failed" and not is_infeasible:
                comparable[number] = trial
        return comparable

    def begin(self, trials: Mapping[int, Mapping[str, Any]]) -> None:
        """Register trials that start together, and show a line for each that is not active yet.

        A trial that continues on new processes begins again.

        Args:
            trials: The values of each trial, by its number. Several trials share a training run.
        """
        self.end.budget.share_training(trials)
        for number, values in trials.items():
            if not self._reports.is_active(number):
                self._reports.begin(number)
                self._progress.begin(number, values)

    def list_active_trials(self) -> list[RunFolder]:
        """Return the folders of the trials that have begun and not ended."""
        return [
            trial_folder(self.folder.location, number) for number in self._reports.list_active()
        ]

    def find_ending(self, number: int) -> tuple[Status, str]:
        """Return the status of a trial that the driver ended, and the reason."""
        if number in self.reasons_to_stop:
            return "stopped", self.reasons_to_stop[number]
        if self.end.outcome:
            return self.end.outcome
        reports = self._rules.count_reports(number)
        return "stopped", describe_scheduler_stop(self.settings, reports)

    def end_running_trials(self) -> None:
        """Record the end of the trials that still run according to their folders."""
        for name, record in self._index.read().items():
            if isinstance(record, TrialRecord) and not record.has_ended:
                folder = RunFolder(self.folder.storage / "trials", name)
                end_trial(folder, *self.find_ending(trial_number(name)))

    def add_report(
        self, number: int, count: int, metrics: Mapping[str, Any], seconds: float
    ) -> str | None:
        """Show a report and send the alerts that are due; return the reason to stop the trial, or
        None.

        Args:
            number: Number of the trial.
            count: How many reports of the trial had the sweep's metrics, with this one.
            metrics: The report.
            seconds: Training time of the trial.
        """
        self._reports.add_report(number, metrics)
        self._progress.add_report(number, metrics)
        self._alerts.check_report(metrics, trial_name(number))

        # Rules and pruner get every report, whatever the other decides.
        reason = self._rules.add_report(number, count, metrics, seconds)
        is_pruned = self._pruner and self._pruner.should_stop(number, count, metrics)
        if is_pruned and reason is None:
            reason = describe_scheduler_stop(self.settings, count)
        if reason is not None:
            self.reasons_to_stop[number] = reason
        return reason

    def show_recovery(self, number: int, error: str) -> None:
        """Show that a trial lost a process and restarts."""
        has_begun = self._reports.is_active(number)
        self._progress.show_recovery(number, error, has_begun=has_begun)

    def record_end(self, number: int, values: Mapping[str, Any], status: Status) -> None:
        """Record the end of a trial that has not failed. An interrupted one will continue."""
        if status == "interrupted":
            self.search.record_pause(number)
            self._reports.interrupt(number)
            self._progress.interrupt(number, values)
            return

        last = self._reports.end(number)
        outcome = self._progress.describe_best(number)
        feasibility = self._feasibility.check_folder(number)
        if feasibility.broken:
            self._progress.drop(number)
            outcome += f", infeasible: {feasibility.broken}"
        self.search.record_end(number, last, feasibility.excesses)
        self._show_and_index(number, values, outcome)

    def record_failure(
        self, number: int, values: Mapping[str, Any], error: str, *, metric_missing: bool
    ) -> None:
        """Record the failure of a trial, which may be that its reports lack the sweep's metric. That
        ends the sweep if no trial has reported it."""
        name = trial_name(number)
        self._failed.add(number)
        self._reports.end(number)
        self.search.record_end(number, None)
        if metric_missing and not self._rules.has_reports():
            self.end.add_missing_metric(name, error)
        else:
            self.end.add_failure(name)
        self._alerts.send_once("failed", f"({name}) has failed: {error}")

        self._progress.drop(number)
        shown = error
        if metric_missing and self.end.metric_missing is not None:
            # The sweep ends with the same error, which has the metrics that there are.
            shown = summarize_missing_metrics(self.settings)
        self._show_and_index(number, values, f"failed: {shown}")

    def has_failed(self, number: int) -> bool:
        """Return whether the failure of a trial is recorded."""
        return number in self._failed

    def _show_and_index(self, number: int, values: Mapping[str, Any], outcome: str) -> None:
        self._progress.end(number, values, outcome)
        self._index.keep(trial_name(number))
