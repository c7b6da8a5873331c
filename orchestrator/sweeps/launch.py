"""Launches a sweep on Ray Tune. Driver."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.result import TIME_TOTAL_S

from orchestrator.config.experiment import Workers
from orchestrator.config.space import count_trials
from orchestrator.config.sweep import Sweep
from orchestrator.runs.folder import ENDED, RunFolder
from orchestrator.stats.tables import COMPACTED, compact
from orchestrator.sweeps.folder import end_trial, trial_folder, trial_folders, trial_name
from orchestrator.sweeps.history import History
from orchestrator.sweeps.schedulers import make_scheduler, seeded
from orchestrator.sweeps.search import TRIAL, param_space, search_algorithm
from orchestrator.sweeps.stopping import Stopping
from orchestrator.sweeps.trial import Trial

if TYPE_CHECKING:
    from orchestrator.sweeps.driver import Watcher


def launch(
    experiment: dict[str, Any],
    import_paths: tuple[str, ...],
    settings: Sweep,
    workers: Workers,
    location: str,
    at_once: int,
    *,
    watcher: Watcher,
    stop_asked: Callable[[], bool],
) -> None:
    """Runs all trials, each on a gang in Tune's own placement group, and returns when they are over."""
    sweep = RunFolder(location)
    ending = _Ending(Stopping(settings, workers.count), stop_asked)
    tuner = tune.Tuner(
        _trainable(experiment, import_paths, workers, location),
        param_space=param_space(settings),
        tune_config=_tune_config(settings, at_once, History(sweep)),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=location,
            stop=ending,
            callbacks=[_Watching(location, watcher, ending)],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            verbose=0,
        ),
    )
    # A trial that fails is told by the watcher, in its own words and without Tune's traceback.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with seeded(settings.seed):
        tuner.fit()
    _end_all(sweep, ending)


def _trainable(experiment: dict[str, Any], import_paths: tuple[str, ...], workers: Workers, location: str) -> Any:
    bundle = {"CPU": workers.cpus, **({"GPU": 1} if workers.gpu else {})}
    return tune.with_resources(
        tune.with_parameters(Trial, experiment=experiment, import_paths=import_paths, location=location),
        tune.PlacementGroupFactory([bundle] * workers.count, strategy="PACK"),
    )


def _tune_config(settings: Sweep, at_once: int, history: History) -> tune.TuneConfig:
    metric, mode = settings.objectives[0]
    # Optuna is told its own metrics, of which there may be several; each trial of another search is known beforehand.
    learns = settings.search == "optuna"
    scheduler = make_scheduler(settings, history)
    if learns:
        scheduler.set_search_properties(metric, mode)
    return tune.TuneConfig(
        metric=None if learns else metric,
        mode=None if learns else mode,
        num_samples=count_trials(settings) if learns else 1,
        search_alg=search_algorithm(settings, at_once),
        scheduler=scheduler,
        reuse_actors=True,
        trial_dirname_creator=lambda trial: trial.trial_id,
    )


def _end_all(sweep: RunFolder, ending: _Ending) -> None:
    """Writes down how those trials ended that were cut off, and joins the rows of all that are over."""
    for folder in trial_folders(sweep):
        status, reason = ending.of(folder.name)
        end_trial(folder, status, reason)
        if folder.about()["status"] in ENDED and not folder.storage.exists(COMPACTED["rows"]):
            compact(folder.storage, folder.attempts())


class _OfThisDriver:
    """What belongs to the living driver: Tune's saved state of the experiment leaves its contents out."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Ending(_OfThisDriver, tune.Stopper):
    """Ends trials by the sweep's rules, and the sweep when the driver was asked to or its budget is used up."""

    def __init__(self, stopping: Stopping, asked: Callable[[], bool]) -> None:
        self._stopping, self._asked = stopping, asked
        self._used: str | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        trial = trial_name(result["config"][TRIAL]["number"])
        return self._stopping.reported(trial, result, result[TIME_TOTAL_S])

    def stop_all(self) -> bool:
        self._used = self._used or self._stopping.budget_used()
        return self._used is not None or self._asked()

    def of(self, trial: str) -> tuple[str, str]:
        """Status and reason of a trial that Tune ended."""
        if trial in self._stopping.reasons:
            return "stopped", self._stopping.reasons[trial]
        if self._used:
            return "stopped", self._used
        return ("interrupted", "interrupted") if self._asked() else ("stopped", "the scheduler ended the trial")


class _Watching(_OfThisDriver, tune.Callback):
    """Hands Tune's news of trials to the watcher, and writes down how those ended that Tune stopped."""

    def __init__(self, location: str, watcher: Watcher, ending: _Ending) -> None:
        self._location, self._watcher, self._ending = location, watcher, ending

    def _folder(self, trial: Any) -> RunFolder:
        return trial_folder(self._location, trial.config[TRIAL]["number"])

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        self._watcher.reported(self._folder(trial).name, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        folder = self._folder(trial)
        if folder.storage.exists("run.json"):
            end_trial(folder, *self._ending.of(folder.name))
        self._watcher.ended(folder.name, trial.config[TRIAL]["values"])

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        folder = self._folder(trial)
        error = "its process died"
        if folder.storage.exists("run.json"):
            about = folder.about()
            error = about.get("error") or error
            if about["status"] == "running":
                folder.end("failed", error=error)
        self._watcher.ended(folder.name, trial.config[TRIAL]["values"], error)
