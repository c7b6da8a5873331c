"""Ray Tune's tuner of a sweep, which runs its trials. Used in the driver."""

import logging
import uuid
from dataclasses import replace

from ray import tune

from orchestrator.disk.sweep_folder import SCRATCH
from orchestrator.engines.script_definitions import pickle_main_definitions
from orchestrator.private_api.ray_tune import forgetting_trials
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.search import DrawnTrials
from orchestrator.sweeps.tune.adapters import Silence, Stopper, SweepSearcher, TrialEvents
from orchestrator.sweeps.tune.schedulers import make_scheduler, seeded
from orchestrator.sweeps.tune.trainable import ENGINES, Trial
from orchestrator.sweeps.tune.trial_data import SCORE, TRIAL


def run_with_tune(sweep: RunningSweep, max_concurrent: int) -> None:
    """Run all trials to their ends, `max_concurrent` at a time."""
    experiment = sweep.experiment
    settings = sweep.settings
    search = sweep.search
    trainable = tune.with_parameters(
        Trial,
        source=replace(
            experiment.source, main_definitions=pickle_main_definitions(experiment.source)
        ),
        settings=settings,
        workers=experiment.workers,
        location=sweep.folder.location,
    )
    resources = tune.PlacementGroupFactory(
        ENGINES[settings.engine].list_bundles(experiment.workers), strategy="PACK"
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
        run_config=_make_run_config(sweep),
    )
    # `RunningSweep` shows a failed trial, without Tune's traceback.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    try:
        with seeded(settings.seed + len(sweep.previous)), forgetting_trials():
            tuner.fit()
    finally:
        sweep.folder.storage.delete(SCRATCH)
    sweep.end_running_trials()


def _make_tune_config(sweep: RunningSweep, max_concurrent: int) -> tune.TuneConfig:
    settings = sweep.settings
    search = sweep.search
    history = History(sweep.folder)
    scheduler = make_scheduler(settings, sweep.previous, history, sweep.reasons_to_stop)
    # Not through Tune, which knows one metric only; the search may have several.
    _, mode = settings.objectives[0]
    scheduler.set_search_properties(SCORE, mode)
    is_drawn = isinstance(search, DrawnTrials)
    must_all_begin = is_drawn and settings.scheduler.waits_for_others
    return tune.TuneConfig(
        num_samples=search.count,
        search_alg=None if is_drawn else SweepSearcher(search, settings),
        max_concurrent_trials=None if must_all_begin else max_concurrent,
        scheduler=scheduler,
        reuse_actors=True,
        trial_dirname_creator=lambda trial: trial.trial_id,
    )


def _make_run_config(sweep: RunningSweep) -> tune.RunConfig:
    storage = sweep.folder.storage
    return tune.RunConfig(
        # A new name for each attempt, so that Tune does not restore the state of an earlier one.
        name=f"tune-{uuid.uuid4().hex[:8]}",
        storage_path=f"{storage.root}/{SCRATCH}",
        storage_filesystem=storage.filesystem,
        stop=Stopper(sweep),
        callbacks=[TrialEvents(sweep), Silence()],
        failure_config=tune.FailureConfig(max_failures=sweep.experiment.max_failures),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        verbose=0,
        # Silent at this verbosity; Tune's reporter for notebooks would clear the cell's output.
        progress_reporter=tune.CLIReporter(),
    )
