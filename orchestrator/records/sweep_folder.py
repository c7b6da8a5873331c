"""A sweep on disk: its own run.json and experiment.yaml, and one run for each trial under `trials/`. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.records.run_folder import RunFolder, run_folders
from orchestrator.storage import Storage

SCRATCH = ".tune"
"""What Tune writes into a sweep's folder for itself, while the sweep is under way."""


def trial_name(number: int) -> str:
    """What a trial is called."""
    return f"trial-{number:04d}"


def trial_number(name: str) -> int:
    """Which trial is called so."""
    return int(name.removeprefix("trial-"))


def trial_folder(location: str, number: int) -> RunFolder:
    """A trial's run."""
    return RunFolder(Storage(location) / "trials", trial_name(number))


def checkpoint_to_exploit(folder: RunFolder, given: str | None) -> str | None:
    """The checkpoint of another trial that this one goes on from: what is given, or what it was given before it was
    interrupted, where it has not begun with that. None goes on from its own."""
    attempts = len(folder.attempts())
    if given is not None:
        folder.update(exploits={"checkpoint": given, "attempts": attempts})
        return given
    before = folder.metadata().exploits
    return before.checkpoint if before and before.attempts == attempts else None


def end_trial(folder: RunFolder, status: str, reason: str) -> None:
    """Writes down how a trial ended that was still under way; one that has said so itself is left alone. Driver."""
    if folder.metadata().status == "running":
        folder.end(status, stopped=[reason])


def trial_folders(sweep: RunFolder) -> list[RunFolder]:
    """The trials of a sweep, in order."""
    return run_folders(sweep.storage / "trials")


def open_sweep_folder(path: str | Path) -> RunFolder:
    """A sweep that exists; raises UsageError where there is none."""
    folder = RunFolder.open(path)
    if folder.metadata().sweep is None:
        raise UsageError(f"{path} is a single run, not a sweep; open it with open_run")
    return folder
