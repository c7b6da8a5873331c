"""The parts of a sweep as Ray Tune calls them: its rules, its search and its events. Used in the
driver."""

from contextlib import suppress
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import COMPLETE
from orchestrator.disk.sweep_folder import end_trial, trial_folder
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
    TrialConfig,
    list_members,
)
from orchestrator.sweeps.tune.trial_data import FAILED, REPORTED, SECONDS, TRIAL


class _Unsaved:
    """Base of objects of the live driver, whose contents Tune's saved state of the experiment
    omits."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Stopper(_Unsaved, tune.Stopper):
    """The sweep's rules, as Tune calls them."""

    def __init__(self, sweep: RunningSweep) -> None:
        self._sweep = sweep

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        number = result.get(REPORTED, result["config"][TRIAL]["number"])
        if number is None:
            return False
        reason = self._sweep.rules.add_report(number, result, result[SECONDS])
        # The scheduler stops one trial of a shared training run, because the others may continue.
        return reason is not None and REPORTED not in result

    def stop_all(self) -> bool:
        return self._sweep.end.is_due()


class SweepSearcher(_Unsaved, Searcher):
    """The sweep's search, as Tune calls it. `TrialEvents` passes it the ends of trials."""

    def __init__(self, search: Search, settings: SweepSettings) -> None:
        metric, mode = settings.objectives[0]
        super().__init__(metric=metric, mode=mode)
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

    def _find_folder(self, member: NumberedValues) -> RunFolder:
        return trial_folder(self._sweep.folder.location, member["number"])

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        members = list_members(trial.config[TRIAL])
        self._sweep.begin({member["number"]: member["values"] for member in members})

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        config: TrialConfig = trial.config[TRIAL]
        for member in list_members(config):
            if member["number"] in result.get(FAILED, ()):
                self._record_failure_alone(config, member)
        number = result.get(REPORTED, config["number"])
        if number is not None:
            self._sweep.show_report(number, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for member in list_members(trial.config[TRIAL]):
            folder = self._find_folder(member)
            if not folder.exists():
                continue  # it never began
            end_trial(folder, *self._sweep.find_ending(member["number"]))
            status = folder.read_metadata().status
            if status == "failed":
                self._record_failure(member)
            else:
                self._sweep.record_end(member["number"], member["values"], status)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        config: TrialConfig = trial.config[TRIAL]
        for member in list_members(config):
            folder = self._find_folder(member)
            # The process may have died before its next result, which would have told of the failure.
            if config["followers"] and _has_failed_permanently(folder):
                self._record_failure_alone(config, member)
            elif not _is_complete(folder):
                self._sweep.show_recovery(member["number"], _read_error(folder))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for member in list_members(trial.config[TRIAL]):
            folder = self._find_folder(member)
            if _is_complete(folder):
                status = folder.read_metadata().status
                self._sweep.record_end(member["number"], member["values"], status)
            else:
                self._record_failure(member)

    def _record_failure_alone(self, config: TrialConfig, member: NumberedValues) -> None:
        """Record the failure of a trial without which the others continue."""
        config["failed"].append(member["number"])
        self._record_failure(member)

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


def _is_complete(trial: RunFolder) -> bool:
    return trial.exists() and trial.read_metadata().status in COMPLETE


def _has_failed_permanently(trial: RunFolder) -> bool:
    """Return whether a trial has failed so that a restart would fail again."""
    if not trial.exists():
        return False
    metadata = trial.read_metadata()
    return metadata.status == "failed" and metadata.is_user_error


def _read_error(trial: RunFolder) -> str:
    error = trial.read_metadata().error if trial.exists() else None
    return error or RankFailed.died(0, 1, trial).message


class Silence(_Unsaved, TrialProgressCallback):
    """Replacement of Tune's progress output, because the running sweep shows the trials."""

    def on_trial_complete(
        self, iteration: int, trials: list[Any], trial: Any, **info: Any
    ) -> None: ...

    def log_result(self, trial: Any, result: dict[str, Any], error: bool = False) -> None: ...
