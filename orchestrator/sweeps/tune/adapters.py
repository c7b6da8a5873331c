"""The parts of a sweep as Ray Tune calls them: its rules, its search and its events. Used in the
driver."""

from contextlib import suppress
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import can_restart, end_trial, trial_folder
from orchestrator.engines.placement_groups import remove_placement_group_of
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.errors import ConfigError
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.private_api.ray_tune import TrialProgressCallback
from orchestrator.sweeps.begin_trial import begin_trial
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.search import (
    NumberedValues,
    Search,
    list_members,
    shares_training,
)
from orchestrator.sweeps.tune.trial_data import SCORE, TRIAL, TrialResult


class _Unsaved:
    """Base of objects of the live driver, whose contents Tune's saved state of the experiment
    omits."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Stopper(_Unsaved, tune.Stopper):
    """Passes each report to the running sweep, and stops the trials that are to stop early."""

    def __init__(self, sweep: RunningSweep) -> None:
        self._sweep = sweep

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        new_report = TrialResult.read(result).new_report
        if new_report is None:
            return False
        number, report = new_report
        reason = self._sweep.add_report(number, report.count, report.metrics, report.seconds)
        # The scheduler stops one trial of a shared training run, because the others may continue.
        return reason is not None and not shares_training(result["config"][TRIAL])

    def stop_all(self) -> bool:
        return self._sweep.end.is_due()


class SweepSearcher(_Unsaved, Searcher):
    """The sweep's search, as Tune calls it. `TrialEvents` passes it the ends of trials."""

    def __init__(self, search: Search, settings: SweepSettings) -> None:
        _, mode = settings.objectives[0]
        super().__init__(metric=SCORE, mode=mode)
        self._search = search

    def suggest(self, trial_id: str) -> Any:
        chosen = self._search.suggest()
        if chosen is not None:
            return {TRIAL: chosen}
        return Searcher.FINISHED if self._search.is_finished else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None: ...

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: a sweep resumes from its trials' folders."""

    def restore(self, checkpoint_path: str) -> None: ...


class TrialEvents(_Unsaved, tune.Callback):
    """Passes Tune's events to the running sweep, and records the ends of trials that Tune stopped.

    Several trials of the sweep that share a training run are one trial for Tune.
    """

    def __init__(self, sweep: RunningSweep) -> None:
        self._sweep = sweep

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._sweep.begin(
            {member["number"]: member["values"] for member in self._list_members(trial)}
        )

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        failed = TrialResult.read(result).failed
        for member in self._list_members(trial):
            if member["number"] in failed:
                self._record_failure(member)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for member in self._list_members(trial):
            folder = self._find_folder(member)
            if not folder.exists():
                continue  # it never began
            end_trial(folder, *self._sweep.find_ending(member["number"]))
            if folder.read_metadata().status == "failed":
                self._record_failure(member)
            else:
                self._record_end(member)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        is_single = not shares_training(trial.config[TRIAL])
        for member in self._list_members(trial):
            folder = self._find_folder(member)
            if is_single or can_restart(folder):
                self._sweep.show_recovery(member["number"], _read_error(folder))
            elif not folder.read_metadata().is_complete:
                # The process has died before its next result, which would have told of the failure.
                self._record_failure(member)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for member in self._list_members(trial):
            folder = self._find_folder(member)
            if folder.exists() and folder.read_metadata().is_complete:
                self._record_end(member)
            else:
                self._record_failure(member)

    def _list_members(self, trial: Any) -> list[NumberedValues]:
        """Return the trials of a training run whose failure is not recorded."""
        members = list_members(trial.config[TRIAL])
        return [member for member in members if not self._sweep.has_failed(member["number"])]

    def _find_folder(self, member: NumberedValues) -> RunFolder:
        return trial_folder(self._sweep.folder.location, member["number"])

    def _record_end(self, member: NumberedValues) -> None:
        status = self._find_folder(member).read_metadata().status
        self._sweep.record_end(member["number"], member["values"], status)

    def _record_failure(self, member: NumberedValues) -> None:
        sweep = self._sweep
        number = member["number"]
        values = member["values"]
        folder = self._find_folder(member)
        error = _read_error(folder)
        if not folder.exists():
            # Its processes died before it began, and it would be missing among the trials.
            with suppress(ConfigError):
                begin_trial(
                    sweep.folder.location, number, sweep.experiment.source, sweep.settings, values
                )
        if folder.read_metadata().status == "running":
            folder.run_file.end("failed", error=error)
        remove_placement_group_of(folder)
        metric_missing = folder.read_metadata().metric_missing
        sweep.record_failure(number, values, error, metric_missing=metric_missing)


def _read_error(trial: RunFolder) -> str:
    error = trial.read_metadata().error if trial.exists() else None
    return error or RankFailed.died(0, 1, trial).message


class Silence(_Unsaved, TrialProgressCallback):
    """Replacement of Tune's progress output, because the running sweep shows the trials."""

    def on_trial_complete(
        self, iteration: int, trials: list[Any], trial: Any, **info: Any
    ) -> None: ...

    def log_result(self, trial: Any, result: dict[str, Any], error: bool = False) -> None: ...
