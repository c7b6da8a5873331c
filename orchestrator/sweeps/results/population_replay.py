"""Replays a trial of a population as a single run."""

from __future__ import annotations

from orchestrator.config.load import experiment_from_source
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import UsageError
from orchestrator.records.run_folder import RunFolder
from orchestrator.sweeps.results.population_history import History, lineage
from orchestrator.sweeps.trial_setup import trial_source


def replay(sweep: RunFolder, experiment: Experiment, trial: str) -> Experiment:
    """Return an experiment that changes its values at the steps at which those of the trial's weights changed.

    Raises UsageError without such a trial, ConfigError if a value cannot change during a run.
    """
    exploits = lineage(History(sweep).read(), trial)
    folder = RunFolder(sweep.storage / "trials", trial)
    if not folder.exists():
        raise UsageError(f"{sweep} has no trial '{trial}'")
    first = exploits[0].before if exploits else folder.metadata().values
    assert experiment.sweep is not None
    source = trial_source(experiment.source, experiment.sweep, first)
    changes = [{"at": f"{exploit.step} steps", "set": exploit.changes} for exploit in exploits if exploit.changes]
    written, _ = source.merged()
    return experiment_from_source(
        source.with_values({"name": f"{sweep.name}-{trial}", "changes": [*(written.get("changes") or []), *changes]})
    )
