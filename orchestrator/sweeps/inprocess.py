"""A sweep in this process, without starting Ray: one rank, one trial after the other, each to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.tune.search.variant_generator import generate_variants

from orchestrator.config.experiment import Experiment, Sweep
from orchestrator.config.load import resolved
from orchestrator.errors import ConfigError
from orchestrator.loop.world import World
from orchestrator.runs.folder import RunFolder
from orchestrator.runs.session import Assignment, reports
from orchestrator.stats.tables import compact
from orchestrator.sweeps.folder import begin_trial, trial_folder
from orchestrator.sweeps.space import tune_space

if TYPE_CHECKING:
    from orchestrator.sweeps.driver import Watcher


def run_trials(
    experiment: Experiment, settings: Sweep, location: str, watcher: Watcher, stop_asked: Callable[[], bool]
) -> None:
    """Runs every trial in turn; one that fails is written down and the next one begins."""
    for number, values in enumerate(_drawn(settings)):
        if stop_asked():
            return
        trial_id = f"local_{number:05d}"
        try:
            trial, folder = begin_trial(location, trial_id, experiment, values)
        except ConfigError as error:
            watcher.ended(trial_folder(location, trial_id).name, values, str(error))
            continue
        failure = _run_trial(trial, settings, folder, watcher, stop_asked)
        watcher.ended(folder.name, values, failure)


def _drawn(settings: Sweep) -> list[dict[str, Any]]:
    """The values of each trial, drawn by Ray Tune's own generator."""
    random = np.random.RandomState(settings.seed)
    space = {"config": tune_space(settings)}
    return [
        spec["config"] for _ in range(settings.trials) for _, spec in generate_variants(space, random_state=random)
    ]


def _run_trial(
    trial: Experiment, settings: Sweep, folder: RunFolder, watcher: Watcher, stop_asked: Callable[[], bool]
) -> str | None:
    assignment = Assignment(resolved(trial), trial.import_paths, str(folder))
    interrupted = False
    try:
        for report in reports(assignment, World(), stop_asked=stop_asked):
            interrupted = report.interrupted
            if settings.metric in report.metrics:
                watcher.reported(folder.name, report.metrics)
    except Exception as error:  # one trial's failure, whatever it is, does not end the sweep
        folder.end("failed", error=str(error))
        return str(error)
    if not interrupted:
        compact(folder.storage, folder.attempts())
    folder.end("interrupted" if interrupted else "finished", error=None)
    return None
