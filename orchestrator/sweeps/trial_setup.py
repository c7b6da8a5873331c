"""A trial begins: its experiment, and its run on disk. In the process that trains it; in the driver where that died before."""

from __future__ import annotations

from typing import Any

from orchestrator.config.experiment import Experiment
from orchestrator.config.load import to_yaml, with_overrides
from orchestrator.errors import ConfigError
from orchestrator.records.run_folder import RunFolder, driver_identity
from orchestrator.records.sweep_folder import trial_folder


def begin_trial(location: str, number: int, sweep: Experiment, values: dict[str, Any]) -> tuple[Experiment, RunFolder]:
    """A trial's experiment and its run. Values that do not go together make a failed trial, and ConfigError is raised."""
    try:
        experiment = with_overrides(sweep, values)
    except ConfigError as error:
        open_or_create_trial(location, number, sweep, values).end("failed", error=str(error), mistake=True)
        raise
    return experiment, open_or_create_trial(location, number, experiment, values)


def open_or_create_trial(location: str, number: int, experiment: Experiment, values: dict[str, Any]) -> RunFolder:
    """A trial's run, made if it is new; one that goes on, perhaps with other values, is taken up again."""
    folder = trial_folder(location, number)
    if folder.storage.exists("run.json"):
        folder.storage.write("experiment.yaml", to_yaml(experiment))
        folder.update(status="running", error=None, values=values, **driver_identity())
        return folder
    folder.begin(to_yaml(experiment), trial=folder.name, values=values, import_paths=list(experiment.import_paths), local=False)
    return folder
