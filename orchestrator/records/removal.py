"""Removing a run: what it holds, what hangs on it, and in which order it goes. Driver."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from orchestrator.errors import DamagedFile, StorageError, UsageError
from orchestrator.records.lease import FOLDER as CLAIMS
from orchestrator.records.lease import Lease
from orchestrator.records.run_driver import status_of
from orchestrator.records.run_folder import EVALUATIONS, RunFolder, run_folders
from orchestrator.storage import Storage

_log = logging.getLogger("hookyard")
_OUT_DIR = re.compile(r"out_dir\W*:\s*(?!null\b)\S")
"""What an experiment has to say for its checkpoints to lie elsewhere; looking for it is a thousand times quicker than
reading YAML."""


@dataclass(frozen=True)
class Removal:
    """A run or a sweep that is to be removed."""

    folder: RunFolder
    kept_elsewhere: Sequence[Storage]
    """Where checkpoints lie that an `out_dir` put outside the folder."""
    successors: Sequence[RunFolder]
    """Runs beside it that went on from its checkpoints."""

    @classmethod
    def of(cls, path: str) -> Removal:
        """What goes with a run; raises UsageError where it is no run, under way, a trial, or another one still begins
        from it."""
        folder = RunFolder.open(path)
        if _status(folder) == "running":
            raise UsageError(f"{folder} is under way: end it before it is removed")
        own = [folder, *run_folders(folder.storage / "trials")]
        evaluations = [
            one
            for found in folder.storage.each(lambda run: run_folders(run.storage / EVALUATIONS), own)
            for one in found
        ]
        if under_way := [one for one in evaluations if _status(one) == "running"]:
            raise UsageError(f"{under_way[0]} is under way: end it before {folder.name} is removed")
        around = folder.storage.parent
        if around.name == "trials" and RunFolder(around.parent).exists():
            raise UsageError(
                f"{folder} is a trial, and its sweep's tables are made of all trials: remove the sweep, hookyard rm"
                f" {around.parent}"
            )
        successors = [other for other in run_folders(around) if _continues(other, folder)]
        if lacking := [other for other in successors if not other.checkpoint_names()]:
            raise UsageError(
                f"{lacking[0]} goes on from {folder}, and has no checkpoint of its own yet: end or remove that first"
            )
        elsewhere = [
            kept for found in folder.storage.each(lambda run: _kept_outside(run, folder), own) for kept in found
        ]
        return cls(folder, elsewhere, successors)

    def __str__(self) -> str:
        trials = len(run_folders(self.folder.storage / "trials"))
        what = f"a sweep of {trials} {'trial' if trials == 1 else 'trials'}" if trials else "a run"
        files = self.folder.storage.tree().values()
        size_bytes = sum(state.size_bytes for state in files)
        lines = [
            f"{self.folder}: {what}, {_status(self.folder)}; {len(files)} files, {size_bytes / 2**20:.1f} MiB",
            *(f"  with its checkpoints in {kept}" for kept in self.kept_elsewhere),
            *(f"  {other} went on from it, and stays as it is" for other in self.successors),
        ]
        return "\n".join(lines)

    def carry_out(self) -> None:
        """Remove it, its `run.json` last, so that what is cut short can be taken up again.

        A disk that takes no lease, as it is full, is no reason to keep it: `of` has seen that nobody drives it.
        """
        with ExitStack() as held:
            try:
                held.enter_context(Lease(self.folder.storage))
            except UsageError as error:
                if not isinstance(error.__cause__, StorageError):
                    raise
            for kept in self.kept_elsewhere:
                kept.parent.delete(kept.name)
            for name in self.folder.storage.names():
                if name not in ("run.json", CLAIMS):
                    self.folder.storage.delete(name)
        self.folder.storage.parent.delete(self.folder.name)
        if self.folder.storage.exists():
            raise StorageError(f"{self.folder} could not be removed altogether: look at its permissions")


def _status(folder: RunFolder) -> str:
    try:
        return status_of(folder)
    except DamagedFile as error:
        _log.warning("%s", error)
        return "damaged"


def _continues(other: RunFolder, folder: RunFolder) -> bool:
    with suppress(DamagedFile):
        before = other.metadata().continued_from
        return before is not None and _within(before["run"], folder)
    return False


def _kept_outside(run: RunFolder, folder: RunFolder) -> list[Storage]:
    """Where a run's checkpoints lie, if that is not in the folder that is removed; nowhere where its experiment cannot
    be read."""
    with suppress(DamagedFile):
        if not _OUT_DIR.search(run.experiment_text()):
            return []
        kept = run.kept_checkpoints()
        return [] if _within(kept.path, folder) or not kept.exists() else [kept]
    return []


def _within(path: str, folder: RunFolder) -> bool:
    return f"{path}/".startswith(f"{folder.storage.path}/")
