"""Runs the trials of a sweep under Ray Tune. Driver."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ray import tune
from ray.tune.result import TIME_TOTAL_S
from ray.tune.search import Searcher

from orchestrator.config.sections.sweep import HyperBand, Population, Sweep
from orchestrator.engines.engine import ENGINES
from orchestrator.engines.main_classes import with_classes_of_main
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.train_engine import remove_placement_group_of
from orchestrator.errors import ConfigError
from orchestrator.private_api.ray_tune import TrialProgressCallback, forgetting_trials
from orchestrator.records.run_folder import ENDED, RunFolder
from orchestrator.records.sweep_folder import SCRATCH, end_trial, trial_folder, trial_name
from orchestrator.stats.aggregate.trial_index import TrialRecord
from orchestrator.sweeps.results.population_history import History
from orchestrator.sweeps.search.search import DrawnTrials, Search
from orchestrator.sweeps.stopping_rules import StoppingRules
from orchestrator.sweeps.sweep_context import SweepContext
from orchestrator.sweeps.trial_setup import begin_trial
from orchestrator.sweeps.tune.schedulers import make_scheduler, seeded
from orchestrator.sweeps.tune.trainable import Trial
from orchestrator.sweeps.tune.tune_config import FAILED, REPORTED, TRIAL


def launch(context: SweepContext, max_concurrent: int) -> None:
    """Run all trials to their ends, `max_concurrent` at a time."""
    experiment, settings, sweep, rules = context.experiment, context.settings, context.folder, context.rules
    search = context.search
    parameters = {
        "source": with_classes_of_main(experiment.source),
        "settings": settings,
        "workers": experiment.workers,
        "location": sweep.location,
    }
    bundles = ENGINES[settings.engine].bundles(experiment.workers)
    trainable = tune.with_resources(
        tune.with_parameters(Trial, **parameters), tune.PlacementGroupFactory(bundles, strategy="PACK")
    )
    # Tune's populations refuse any search algorithm, so drawn trials are samples: each sample is the next trial.
    drawn = {TRIAL: tune.sample_from(lambda _: search.suggest())} if isinstance(search, DrawnTrials) else {}
    tuner = tune.Tuner(
        trainable,
        param_space=drawn,
        tune_config=_tune_config(context, max_concurrent),
        run_config=_run_config(sweep, _Stopper(rules), _TrialEvents(context), experiment.max_failures),
    )
    # The announcer reports a failed trial without Tune's traceback.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    try:
        with seeded(settings.seed + len(context.previous)), forgetting_trials():
            tuner.fit()
    finally:
        sweep.storage.delete(SCRATCH)
    for name, record in context.index.records().items():
        if isinstance(record, TrialRecord) and not record.is_over:
            end_trial(RunFolder(sweep.storage / "trials", name), *rules.ending(name))


def _tune_config(context: SweepContext, max_concurrent: int) -> tune.TuneConfig:
    settings, sweep, search = context.settings, context.folder, context.search
    scheduler = make_scheduler(
        settings, History(sweep), context.previous, lambda number: _is_mistake(trial_folder(sweep.location, number))
    )
    # Not through Tune, which knows one metric only; the search may have several.
    scheduler.set_search_properties(*settings.objectives[0])
    drawn = isinstance(search, DrawnTrials)
    waits = isinstance(settings.scheduler, Population | HyperBand)
    return tune.TuneConfig(
        num_samples=search.count,
        search_alg=None if drawn else _Searcher(search, settings),
        # Trials that wait for each other must all have begun.
        max_concurrent_trials=None if drawn and waits else max_concurrent,
        scheduler=scheduler,
        reuse_actors=True,
        trial_dirname_creator=lambda trial: trial.trial_id,
    )


def _run_config(sweep: RunFolder, stopper: _Stopper, events: _TrialEvents, max_failures: int) -> tune.RunConfig:
    return tune.RunConfig(
        # A new name for each attempt, so that Tune does not restore its own state of an earlier one.
        name=f"tune-{uuid.uuid4().hex[:8]}",
        storage_path=f"{sweep.storage.root}/{SCRATCH}",
        storage_filesystem=sweep.storage.filesystem,
        stop=stopper,
        callbacks=[events, _Silence()],
        failure_config=tune.FailureConfig(max_failures=max_failures),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        verbose=0,
        # Silent at this verbosity; Tune's reporter for notebooks would clear the cell's output.
        progress_reporter=tune.CLIReporter(),
    )


def _is_mistake(trial: RunFolder) -> bool:
    """Return whether a trial failed by a mistake that would happen again."""
    if not trial.exists():
        return False
    metadata = trial.metadata()
    return metadata.status == "failed" and metadata.mistake


class _Unsaved:
    """Base of objects of the live driver, whose contents Tune's saved state of the experiment omits."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Stopper(_Unsaved, tune.Stopper):
    """The sweep's rules, as Tune calls them."""

    def __init__(self, rules: StoppingRules) -> None:
        self._rules = rules

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if REPORTED not in result:
            return self._rules.stops(trial_name(result["config"][TRIAL]["number"]), result, result[TIME_TOTAL_S])
        if result[REPORTED] is not None:
            # Its own process stops it, as the others may go on. Here the report counts for the budget.
            self._rules.stops(trial_name(result[REPORTED]), result, 0)
        return False

    def stop_all(self) -> bool:
        return self._rules.sweep_is_over()


class _Searcher(_Unsaved, Searcher):
    """The sweep's search, as Tune calls it. `_TrialEvents` tells the search how trials end."""

    def __init__(self, search: Search, settings: Sweep) -> None:
        metric, mode = settings.objectives[0]
        super().__init__(metric=metric, mode=mode)
        self._search = search

    def suggest(self, trial_id: str) -> Any:
        chosen = self._search.suggest()
        if chosen is not None:
            return {TRIAL: chosen}
        return Searcher.FINISHED if self._search.is_finished else None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: a sweep resumes from its trials' folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing."""


class _TrialEvents(_Unsaved, tune.Callback):
    """Passes Tune's events to the announcer, and writes down the ends of trials that Tune stopped."""

    def __init__(self, context: SweepContext) -> None:
        self._sweep, self._experiment, self._search = context.folder, context.experiment, context.search
        self._announcer, self._rules, self._index = context.announcer, context.rules, context.index
        self._last: dict[int, Mapping[str, Any]] = {}
        """Last report of each active trial; Tune has none of a trial that ends while it is paused."""
        self._failed_before: set[int] = set()
        """Trials that failed before the others of their training were over."""

    def _trials(self, trial: Any) -> list[tuple[int, Any, RunFolder]]:
        """Return number, values and folder of each trial behind one of Tune's, without those that failed before."""
        config = trial.config[TRIAL]
        return [
            (member["number"], member["values"], trial_folder(self._sweep.location, member["number"]))
            for member in (config, *config["followers"])
            if member["number"] not in self._failed_before
        ]

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for _, values, folder in self._trials(trial):
            self._announcer.begins(folder.name, values)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        for number, values, folder in self._trials(trial):
            if number in result.get(FAILED, ()):
                self._failed_before.add(number)
                self._failed(number, values, folder)
        number = result.get(REPORTED, trial.config[TRIAL]["number"])
        if number is not None:
            self._last[number] = result
            self._announcer.reported(trial_name(number), result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for number, values, folder in self._trials(trial):
            if not folder.exists():
                continue  # never begun
            if _is_mistake(folder):
                self._failed(number, values, folder)
                continue
            end_trial(folder, *self._rules.ending(folder.name))
            self._ended(number, values, folder)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for _, _, folder in self._trials(trial):
            if not _is_mistake(folder):
                self._announcer.recovers(folder.name, self._error(folder))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for number, values, folder in self._trials(trial):
            if folder.exists() and folder.metadata().status in ENDED:
                self._ended(number, values, folder)
            else:
                self._failed(number, values, folder)

    def _ended(self, number: int, values: Mapping[str, Any], folder: RunFolder) -> None:
        self._search.ended(number, self._last.pop(number, None))
        self._announcer.ended(folder.name, values)
        self._index.keep(folder.name)

    def _failed(self, number: int, values: Mapping[str, Any], folder: RunFolder) -> None:
        settings = self._experiment.sweep
        assert settings is not None
        error = self._error(folder)
        self._last.pop(number, None)
        self._search.ended(number, None)
        if not folder.exists():
            # Its processes died before it began, and it would be missing among the trials.
            with suppress(ConfigError):
                begin_trial(self._sweep.location, number, self._experiment.source, settings, values)
        if folder.metadata().status == "running":
            folder.end("failed", error=error)
        remove_placement_group_of(folder)
        metadata = folder.metadata()
        self._rules.trial_failed(folder.name, metadata.error if metadata.metric_missing else None)
        self._announcer.ended(folder.name, values, error)
        self._index.keep(folder.name)

    @staticmethod
    def _error(folder: RunFolder) -> str:
        error = folder.metadata().error if folder.exists() else None
        return error or f"the trial's process {RankFailed.died(0, folder).words}"


class _Silence(_Unsaved, TrialProgressCallback):
    """Takes the place of Tune's progress output, as the announcer reports the trials."""

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Do nothing."""

    def log_result(self, trial: Any, result: dict[str, Any], error: bool = False) -> None:
        """Do nothing."""
