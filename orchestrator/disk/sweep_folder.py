"""The folder of a sweep: its own run.json and experiment.yaml, and a run for each trial under
`trials/`."""

import re
from dataclasses import replace
from pathlib import Path

from orchestrator.disk.listing import list_run_folders
from orchestrator.disk.metadata import ExploitedCheckpoint, RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import Status
from orchestrator.errors import UsageError
from orchestrator.storage import Storage

SCRATCH = ".tune"
"""Folder of Tune's own files while the sweep is running."""
CHECKPOINTS_TO_EXPLOIT = 4
"""Number of a trial's newest checkpoints that its sweep keeps, because another trial may continue
from one of them later."""
_TRIAL_NAME = re.compile(r"trial-\d{4,}")


def trial_name(number: int) -> str:
    return f"trial-{number:04d}"


def trial_number(name: str) -> int:
    return int(name.removeprefix("trial-"))


def trial_folder(location: str, number: int) -> RunFolder:
    return RunFolder(Storage(location) / "trials", trial_name(number))


def is_trial(folder: RunFolder) -> bool:
    """Return whether a folder has the name and the place of a trial. Reads no file."""
    has_name = _TRIAL_NAME.fullmatch(folder.name) is not None
    return has_name and folder.storage.parent.name == "trials"


def get_sweep(trial: RunFolder) -> RunFolder:
    """Return the sweep that a trial is of."""
    return RunFolder(trial.storage.parent.parent)


def read_launch_metadata(folder: RunFolder) -> RunMetadata:
    """Return the metadata of the run or sweep that a command launched: those of the sweep for a
    trial, if its sweep is still there."""
    metadata = folder.read_metadata()
    if not metadata.trial:
        return metadata
    sweep = get_sweep(folder)
    return sweep.read_metadata() if sweep.exists() else metadata


def list_trial_folders(sweep: RunFolder) -> list[RunFolder]:
    return list_run_folders(sweep.storage / "trials")


def find_checkpoint_to_exploit(folder: RunFolder, assigned: str | None) -> str | None:
    """Return the checkpoint of another trial that this trial continues from, or None for its own.

    It is the assigned checkpoint, or the one assigned before an interruption if no attempt has
    started from it.
    """
    attempts = len(folder.read_attempts())
    metadata = folder.read_metadata()
    settings = metadata.trial_settings
    if assigned is not None:
        exploited = replace(settings, exploits=ExploitedCheckpoint(assigned, attempts))
        folder.run_file.replace(replace(metadata, trial_settings=exploited))
        return assigned
    before = settings.exploits
    return before.checkpoint if before and before.attempts == attempts else None


def can_restart(folder: RunFolder) -> bool:
    """Return whether a trial that lost its process trains again: it has not come to its end, and
    has not failed in a way that it would repeat."""
    if not folder.exists():
        return True
    metadata = folder.read_metadata()
    has_failed_for_good = metadata.status == "failed" and metadata.is_user_error
    return not metadata.is_complete and not has_failed_for_good


def end_trial(folder: RunFolder, status: Status, reason: str) -> None:
    """Record the end of a trial that is still running. Runs in the driver."""
    if folder.read_metadata().status == "running":
        folder.run_file.end(status, stopped=[reason])


def open_sweep_folder(path: str | Path) -> RunFolder:
    """Return a sweep that exists; raises UsageError otherwise."""
    folder = RunFolder.open(path)
    if folder.read_metadata().sweep is None:
        raise UsageError(f"{folder} is a single run, not a sweep; open it with open_run")
    return folder
