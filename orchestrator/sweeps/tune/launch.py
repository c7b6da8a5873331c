"""Runs the trials of a sweep under Ray Tune. Used in the driver."""

import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ray import tune
from ray.tune.search import Searcher

from orchestrator.disk.metadata import COMPLETE
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import SCRATCH, end_trial, trial_folder, trial_number
from orchestrator.engines.placement_groups import remove_placement_group_of
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.script_classes import with_classes_of_main
from orchestrator.errors import ConfigError
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.private_api.ray_tune import TrialProgressCallback, forgetting_trials
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.search import DrawnTrials, Search
from orchestrator.sweeps.trials import begin_trial
from orchestrator.sweeps.tune.schedulers import make_scheduler, seeded
from orchestrator.sweeps.tune.trainable import ENGINES, Trial
from orchestrator.sweeps.tune.trial_data import FAILED, REPORTED, SECONDS, TRIAL
from orchestrator.tables.trial_record import TrialRecord


def launch(sweep: RunningSweep, max_concurrent: int) -> None:
    """Run all trials to their ends, `max_concurrent` at a time."""
    experiment = sweep.experiment
    settings = sweep.settings
    search = sweep.search
    trainable = tune.with_parameters(
        Trial,
        source=with_classes_of_main(experiment.source),
        settings=settings,
        workers=experiment.workers,
        location=sweep.folder.location,
    )
    resources = tune.PlacementGroupFactory(
        ENGINES[settings.engine].bundles(experiment.workers), strategy="PACK"
    )
    drawn = {}
    if isinstance(search, DrawnTrials):
        # Tune's populations refuse any search algorithm, so drawn trials are samples: each sample
        # is the next trial.
        drawn[TRIAL] = tune.sample_from(lambda _: search.suggest())
    tuner = tune.Tuner(
        tune.with_resources(trainable, resources),
        param_space=drawn,
        tune_config=_make_tune_config(sweep, max_concurrent),
        run_config=_run_config(sweep),
    )
    # `RunningSweep` shows a failed trial, without Tune's traceback.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    try:
        with seeded(settings.seed + len(sweep.previous)), forgetting_trials():
            tuner.fit()
    finally:
        sweep.folder.storage.delete(SCRATCH)
    for name, record in sweep.index.read().items():
        if isinstance(record, TrialRecord) and not record.has_ended:
            trial = RunFolder(sweep.folder.storage / "trials", name)
            end_trial(trial, *sweep.find_ending(trial_number(name)))


def _make_tune_config(sweep: RunningSweep, max_concurrent: int) -> tune.TuneConfig:
    settings = sweep.settings
    search = sweep.search
    scheduler = make_scheduler(settings, sweep.previous, sweep.rules.reasons, History(sweep.folder))
    # Not through Tune, which knows one metric only; the search may have several.
    scheduler.set_search_properties(*settings.objectives[0])
    is_drawn = isinstance(search, DrawnTrials)
    must_all_begin = is_drawn and settings.scheduler.waits_for_others
    return tune.TuneConfig(
        num_samples=search.count,
        search_alg=None if is_drawn else _Searcher(search, settings),
        max_concurrent_trials=None if must_all_begin else max_concurrent,
        scheduler=scheduler,
        reuse_actors=True,
        trial_dirname_creator=lambda trial: trial.trial_id,
    )


def _run_config(sweep: RunningSweep) -> tune.RunConfig:
    storage = sweep.folder.storage
    return tune.RunConfig(
        # A new name for each attempt, so that Tune does not restore the state of an earlier one.
        name=f"tune-{uuid.uuid4().hex[:8]}",
        storage_path=f"{storage.root}/{SCRATCH}",
        storage_filesystem=storage.filesystem,
        stop=_Stopper(sweep),
        callbacks=[_TrialEvents(sweep), _Silence()],
        failure_config=tune.FailureConfig(max_failures=sweep.experiment.max_failures),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        verbose=0,
        # Silent at this verbosity; Tune's reporter for notebooks would clear the cell's output.
        progress_reporter=tune.CLIReporter(),
    )


class _Unsaved:
    """Base of objects of the live driver, whose contents Tune's saved state of the experiment
    omits."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Stopper(_Unsaved, tune.Stopper):
    """The sweep's rules, as Tune calls them."""

    def __init__(self, sweep: RunningSweep) -> None:
        self._sweep = sweep

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        number = result.get(REPORTED, result["config"][TRIAL]["number"])
        if number is None:
            return False
        stops = self._sweep.rules.should_stop(number, result, result[SECONDS])
        # The scheduler stops one trial of a shared training run, because the others may continue.
        return stops and REPORTED not in result

    def stop_all(self) -> bool:
        return self._sweep.end.is_due()


class _Searcher(_Unsaved, Searcher):
    """The sweep's search, as Tune calls it. `_TrialEvents` passes it the ends of trials."""

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


class _Member(NamedTuple):
    """A trial of the sweep. Several that share a training run are one trial for Tune."""

    number: int
    values: Mapping[str, Any]
    folder: RunFolder


class _TrialEvents(_Unsaved, tune.Callback):
    """Passes Tune's events to the running sweep, and records the ends of trials that Tune
    stopped."""

    def __init__(self, sweep: RunningSweep) -> None:
        self._sweep = sweep
        self._failed_before: set[int] = set()
        """Trials that failed before the others of their training were over."""

    def _list_members(self, trial: Any) -> list[_Member]:
        """Return the sweep's trials that are one of Tune's, without those that failed before."""
        location = self._sweep.folder.location
        config = trial.config[TRIAL]
        return [
            _Member(member["number"], member["values"], trial_folder(location, member["number"]))
            for member in (config, *config["followers"])
            if member["number"] not in self._failed_before
        ]

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        members = self._list_members(trial)
        self._sweep.begin({member.number: member.values for member in members})

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        for member in self._list_members(trial):
            if member.number in result.get(FAILED, ()):
                self._failed_before.add(member.number)
                self._record_failure(member)
        number = result.get(REPORTED, trial.config[TRIAL]["number"])
        if number is not None:
            self._sweep.record_report(number, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for member in self._list_members(trial):
            folder = member.folder
            if not folder.exists():
                continue  # it never began
            end_trial(folder, *self._sweep.find_ending(member.number))
            status = folder.read_metadata().status
            if status == "failed":
                self._record_failure(member)
            else:
                self._sweep.record_end(
                    member.number, member.values, interrupted=status == "interrupted"
                )

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for member in self._list_members(trial):
            self._sweep.show_recovery(member.number, _read_error(member.folder))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        for member in self._list_members(trial):
            if member.folder.exists() and member.folder.read_metadata().status in COMPLETE:
                self._sweep.record_end(member.number, member.values)
            else:
                self._record_failure(member)

    def _record_failure(self, member: _Member) -> None:
        sweep = self._sweep
        folder = member.folder
        error = _read_error(folder)
        if not folder.exists():
            # Its processes died before it began, and it would be missing among the trials.
            with suppress(ConfigError):
                begin_trial(
                    sweep.folder.location,
                    member.number,
                    sweep.experiment.source,
                    sweep.settings,
                    member.values,
                )
        if folder.read_metadata().status == "running":
            folder.end("failed", error=error)
        remove_placement_group_of(folder)
        sweep.record_failure(
            member.number,
            member.values,
            error,
            metric_missing=folder.read_metadata().metric_missing,
        )


def _read_error(trial: RunFolder) -> str:
    error = trial.read_metadata().error if trial.exists() else None
    return error or RankFailed.died(0, 1, trial).message


class _Silence(_Unsaved, TrialProgressCallback):
    """Replacement of Tune's progress output, because the running sweep shows the trials."""

    def on_trial_complete(
        self, iteration: int, trials: list[Any], trial: Any, **info: Any
    ) -> None: ...

    def log_result(self, trial: Any, result: dict[str, Any], error: bool = False) -> None: ...
