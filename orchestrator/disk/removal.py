"""Removal of a run with all its files, in a safe order. Runs in the driver."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain

from orchestrator.disk.checkpoint_folder import find_checkpoint_folder, list_checkpoints
from orchestrator.disk.lease import FOLDER as CLAIMS
from orchestrator.disk.lease import Lease
from orchestrator.disk.listing import list_run_folders
from orchestrator.disk.run_folder import EVALUATIONS, RunFolder
from orchestrator.errors import DamagedFile, StorageError, UsageError
from orchestrator.storage import Storage
from orchestrator.units import format_count

_log = logging.getLogger("hookyard")


@dataclass(frozen=True)
class Removal:
    """A run or a sweep to remove."""

    folder: RunFolder
    checkpoints_outside: Sequence[Storage]
    """Folders of checkpoints outside the run's folder, because of an `out_dir`."""

    def __str__(self) -> str:
        trials = len(list_run_folders(self.folder.storage / "trials"))
        kind = "a run"
        if trials:
            kind = f"a sweep of {format_count(trials, 'trial')}"
        files = self.folder.storage.tree().values()
        size_mib = sum(state.size_bytes for state in files) / 2**20
        status = _find_status(self.folder)
        count = format_count(len(files), "file")
        lines = [f"{self.folder}: {kind}, {status}; {count}, {size_mib:.1f} MiB"]
        lines += [f"  with its checkpoints in {storage}" for storage in self.checkpoints_outside]
        return "\n".join(lines)

    def execute(self) -> None:
        """Remove all files, `run.json` last, so that an interrupted removal can be repeated.

        On a full disk, no lease can be taken; the run is then removed without a lease.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(Lease(self.folder.storage))
            except UsageError as error:
                if not isinstance(error.__cause__, StorageError):
                    raise
            for storage in self.checkpoints_outside:
                storage.parent.delete(storage.name)
            for name in self.folder.storage.names():
                if name not in ("run.json", CLAIMS):
                    self.folder.storage.delete(name)
        self.folder.storage.parent.delete(self.folder.name)
        if self.folder.storage.exists():
            raise StorageError(
                f"some files of {self.folder} could not be removed: check their permissions"
            )


def plan_removal(path: str) -> Removal:
    """Plan the removal of a run; raises UsageError if it is a trial or running, or if another run
    needs it."""
    folder = RunFolder.open(path)
    runs = [folder, *list_run_folders(folder.storage / "trials")]
    evaluations = folder.storage.map(lambda run: list_run_folders(run.storage / EVALUATIONS), runs)
    for run in [folder, *chain.from_iterable(evaluations)]:
        if _find_status(run) == "running":
            raise UsageError(f"{run} is running: end it before you remove {folder.name}")
    root = folder.storage.parent
    if root.name == "trials" and RunFolder(root.parent).exists():
        raise UsageError(f"{folder} is a trial; remove the whole sweep: hookyard rm {root.parent}")
    for other in list_run_folders(root):
        with suppress(DamagedFile):
            parent = other.read_metadata().continued_from
            if parent and is_within(parent.run, folder.storage) and not list_checkpoints(other):
                message = f"{other} continues from {folder}, and has no checkpoint of its own yet"
                raise UsageError(f"{message}: end or remove that first")
    return Removal(folder, _checkpoints_outside(folder, runs))


def _find_status(folder: RunFolder) -> str:
    try:
        return folder.find_status()
    except DamagedFile as error:
        _log.warning("%s", error)
        return "damaged"


def _checkpoints_outside(folder: RunFolder, runs: Sequence[RunFolder]) -> list[Storage]:
    """Return the existing folders of checkpoints outside the run's folder, none of which is in
    another."""
    outside: list[Storage] = []
    with suppress(DamagedFile):
        if is_within(find_checkpoint_folder(folder).path, folder.storage):
            return []
        for store in map(find_checkpoint_folder, runs):
            is_listed = any(is_within(store.path, other) for other in (folder.storage, *outside))
            if not is_listed and store.exists():
                outside.append(store)
    return outside


def is_within(path: str, storage: Storage) -> bool:
    """Return whether a path is that of a folder or of a file in it."""
    return f"{path}/".startswith(f"{storage.path}/")
