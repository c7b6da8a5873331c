"""The folder of a run's checkpoints."""

from collections.abc import Mapping
from typing import Any

from orchestrator.disk.checkpoints.index import warn_lost_index
from orchestrator.disk.checkpoints.listing import read_checkpoints
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import get_sweep, is_trial
from orchestrator.experiment.yaml.origins import ParentCheckpoint
from orchestrator.storage import Storage
from orchestrator.storage.omissions import warn_once


def find_checkpoint_folder(
    folder: RunFolder, experiment: Mapping[str, Any] | None = None
) -> Storage:
    """Return the folder of the checkpoints: in the run, or under the `out_dir` of
    `hooks.checkpoint`.

    An `out_dir` has a folder for each run, and for each sweep one with a folder for each trial.
    Reads the run's experiment if it is not passed; raises DamagedFile.
    """
    hooks = (experiment or folder.read_experiment()).get("hooks")
    checkpoint = hooks.get("checkpoint") if isinstance(hooks, dict) else None
    out_dir = checkpoint.get("out_dir") if isinstance(checkpoint, dict) else None
    if not out_dir:
        return folder.storage / "checkpoints"

    # The trials of every sweep have the same names.
    parent = Storage(out_dir) / get_sweep(folder).name if is_trial(folder) else Storage(out_dir)
    return parent / folder.name


def find_parent_checkpoints(folder: RunFolder, parent: ParentCheckpoint) -> Storage:
    """Return the folder of the checkpoints of the run that another one continues from."""
    return find_checkpoint_folder(RunFolder(folder.storage.at(parent.run)))


def list_checkpoints(folder: RunFolder) -> list[str]:
    """Return the stored checkpoints, oldest first; damaged ones are left out with a warning."""
    storage = find_checkpoint_folder(folder)
    manifests, errors = read_checkpoints(storage)
    for error in errors.values():
        warn_once(str(error))
    if manifests:
        warn_lost_index(storage)
    return [*manifests]
