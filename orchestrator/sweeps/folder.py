"""A sweep on disk: its own run.json and experiment.yaml, and one run for each trial under `trials/`."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.runs.folder import RunFolder


def trial_folder(location: str, trial_id: str) -> RunFolder:
    """A trial's run; Tune numbers its trials after an underscore."""
    return RunFolder(f"{location}/trials", f"trial-{int(trial_id.rsplit('_', 1)[-1]):04d}")


def trial_folders(sweep: RunFolder) -> list[RunFolder]:
    """The trials of a sweep, in order."""
    folders = [RunFolder(f"{sweep}/trials", name) for name in sweep.storage.names("trials")]
    return [folder for folder in folders if folder.storage.exists("run.json")]


def open_sweep_folder(path: str | Path) -> RunFolder:
    """A sweep that exists; raises UsageError where there is none."""
    folder = RunFolder.open(path)
    if "sweep" not in folder.about():
        raise UsageError(f"{path} is a single run, not a sweep; open it with open_run")
    return folder
