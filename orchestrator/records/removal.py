"""Removing a run: everything that belongs to it, in a safe order. Driver."""

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
from orchestrator.records.run_folder import EVALUATIONS, RunFolder
from orchestrator.records.run_list import run_folders
from orchestrator.storage import Storage

_log = logging.getLogger("hookyard")
_OUT_DIR = re.compile(r"out_dir\W*:\s*(?!null\b)\S")
"""Text of an experiment whose checkpoints may be elsewhere; a search is far quicker than reading YAML."""


@dataclass(frozen=True)
class Removal:
    """A run or a sweep to remove."""

    folder: RunFolder
    kept_elsewhere: Sequence[Storage]
    """Checkpoints that an `out_dir` put outside the folder."""
    successors: Sequence[RunFolder]
    """Runs beside it that continued from its checkpoints."""

    @classmethod
    def of(cls, path: str) -> Removal:
        """Return what to remove; raises UsageError for a trial, a run that is running, and one that others still
        need."""
        folder = RunFolder.open(path)
        runs = [folder, *run_folders(folder.storage / "trials")]
        evaluations = folder.storage.each(lambda run: run_folders(run.storage / EVALUATIONS), runs)
        for run in [folder, *(evaluation for group in evaluations for evaluation in group)]:
            if _status(run) == "running":
                raise UsageError(f"{run} is running: end it before you remove {folder.name}")
        root = folder.storage.parent
        if root.name == "trials" and RunFolder(root.parent).exists():
            raise UsageError(
                f"{folder} is a trial, and its sweep's tables need all trials: remove the sweep, hookyard rm"
                f" {root.parent}"
            )
        successors = [other for other in run_folders(root) if _continues(other, folder)]
        if lacking := [other for other in successors if not other.checkpoint_names()]:
            raise UsageError(
                f"{lacking[0]} continues from {folder}, and has no checkpoint of its own yet: end or remove that first"
            )
        elsewhere = folder.storage.each(lambda run: _checkpoints_outside(run, folder), runs)
        return cls(folder, [storage for storages in elsewhere for storage in storages], successors)

    def __str__(self) -> str:
        trials = len(run_folders(self.folder.storage / "trials"))
        kind = f"a sweep of {trials} {'trial' if trials == 1 else 'trials'}" if trials else "a run"
        files = self.folder.storage.tree().values()
        size_mib = sum(state.size_bytes for state in files) / 2**20
        lines = [
            f"{self.folder}: {kind}, {_status(self.folder)}; {len(files)} files, {size_mib:.1f} MiB",
            *(f"  with its checkpoints in {storage}" for storage in self.kept_elsewhere),
            *(f"  {other} continued from it, and stays" for other in self.successors),
        ]
        return "\n".join(lines)

    def carry_out(self) -> None:
        """Remove it, `run.json` last, so that an interrupted removal can be repeated.

        A full disk takes no lease; the run is removed all the same, since `of` saw no driver.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(Lease(self.folder.storage))
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
            raise StorageError(f"{self.folder} could not be removed completely: check its permissions")


def _status(folder: RunFolder) -> str:
    try:
        return status_of(folder)
    except DamagedFile as error:
        _log.warning("%s", error)
        return "damaged"


def _continues(other: RunFolder, folder: RunFolder) -> bool:
    with suppress(DamagedFile):
        parent = other.metadata().continued_from
        return parent is not None and _is_within(parent["run"], folder)
    return False


def _checkpoints_outside(run: RunFolder, folder: RunFolder) -> list[Storage]:
    """Return the folder of a run's checkpoints if it is outside of the folder to remove."""
    with suppress(DamagedFile):
        if not _OUT_DIR.search(run.experiment_text()):
            return []
        kept = run.checkpoint_storage()
        return [] if _is_within(kept.path, folder) or not kept.exists() else [kept]
    return []


def _is_within(path: str, folder: RunFolder) -> bool:
    return f"{path}/".startswith(f"{folder.storage.path}/")
