"""Launches a sweep on Ray Tune. Driver."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator

from orchestrator.config.experiment import Sweep, Workers
from orchestrator.sweeps.folder import trial_folder
from orchestrator.sweeps.space import tune_space
from orchestrator.sweeps.trial import SPACE, Trial

if TYPE_CHECKING:
    from orchestrator.sweeps.driver import Watcher

LONGEST = 1_000_000
"""More reports than any trial makes: a trial ends by itself."""


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
    bundle = {"CPU": workers.cpus, **({"GPU": 1} if workers.gpu else {})}
    trainable = tune.with_resources(
        tune.with_parameters(Trial, experiment=experiment, import_paths=import_paths, location=location),
        tune.PlacementGroupFactory([bundle] * workers.count, strategy="PACK"),
    )
    tuner = tune.Tuner(
        trainable,
        param_space={SPACE: tune_space(settings)},
        tune_config=tune.TuneConfig(
            metric=settings.metric,
            mode=settings.mode,
            num_samples=settings.trials,
            search_alg=BasicVariantGenerator(max_concurrent=at_once, random_state=settings.seed),
            scheduler=_scheduler(settings),
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=location,
            stop=_AskedToStop(stop_asked),
            callbacks=[_Watching(location, watcher)],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            verbose=0,
        ),
    )
    # A trial that fails is told by the watcher, in its own words and without Tune's traceback.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    tuner.fit()


def _scheduler(settings: Sweep) -> TrialScheduler:
    if settings.scheduler == "fifo":
        return FIFOScheduler()
    return ASHAScheduler(max_t=LONGEST, grace_period=settings.grace_reports, reduction_factor=settings.reduction)


class _OfThisDriver:
    """What belongs to the living driver: Tune's saved state of the experiment leaves its contents out."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _AskedToStop(_OfThisDriver, tune.Stopper):
    """Ends the sweep when the driver was asked to."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._asked()


class _Watching(_OfThisDriver, tune.Callback):
    """Hands Tune's news of trials to the watcher, under the names of their folders."""

    def __init__(self, location: str, watcher: Watcher) -> None:
        self._location, self._watcher = location, watcher

    def _name(self, trial: Any) -> str:
        return trial_folder(self._location, trial.trial_id).name

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        self._watcher.reported(self._name(trial), result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._watcher.ended(self._name(trial), trial.config[SPACE])

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        folder = trial_folder(self._location, trial.trial_id)
        about = folder.about() if folder.storage.exists("run.json") else {}
        self._watcher.ended(folder.name, trial.config[SPACE], about.get("error") or "its process died")
