"""Removal of a run with all its files, in a safe order. Runs in the driver."""

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast

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
    """A run or a sweep to remove.

    A link to a folder is removed itself, as `rm -r` does. What it leads to stays: the files may be
    needed elsewhere, and their own path removes them.
    """

    folder: RunFolder
    checkpoints_outside: Sequence[Storage]
    """Folders of checkpoints outside the run's folder, because of an `out_dir`."""

    def __str__(self) -> str:
        storage = self.folder.storage
        if target := storage.link_target:
            command = f"hookyard rm {shlex.quote(str(target))}"
            return f"{self.folder}: a link, which alone is removed; to remove its run: {command}"

        trials = len(list_run_folders(storage / "trials"))
        kind = "a run"
        if trials:
            kind = f"a sweep of {format_count(trials, 'trial')}"
        links = storage.folder_links()
        sizes = [
            state.size_bytes
            for path, state in storage.tree().items()
            if not any(path.startswith(f"{link}/") for link in links)
        ]
        status = _find_status(self.folder)
        count = format_count(len(sizes), "file")
        size_mib = sum(sizes) / 2**20
        lines = [f"{self.folder}: {kind}, {status}; {count}, {size_mib:.1f} MiB"]
        lines += [f"  with its checkpoints in {outside}" for outside in self.checkpoints_outside]
        lines += [f"  without {target}, to which {path} is a link" for path, target in self._kept()]
        return "\n".join(lines)

    def _kept(self) -> Iterator[tuple[str, Path]]:
        """Yield each link to a folder that stays, and the folder."""
        for storage in (self.folder.storage, *self.checkpoints_outside):
            if target := storage.link_target:
                yield str(storage), target
                continue
            for name, target in storage.folder_links().items():
                if not target.is_relative_to(cast(Path, storage.local).resolve()):
                    yield str(storage / name), target

    def execute(self) -> None:
        """Remove all files, `run.json` last, so that an interrupted removal can be repeated.

        On a full disk, no lease can be taken; the run is then removed without a lease. Raises
        StorageError if files remain; `run.json` then remains too.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(Lease(self.folder.storage))
            except UsageError as error:
                if not isinstance(error.__cause__, StorageError):
                    raise
            if not self.folder.storage.link_target:
                self._delete_content()
        self.folder.storage.parent.delete(self.folder.name)
        if self.folder.storage.exists():
            raise StorageError(f"{self.folder} could not be removed: check its permissions")

    def _delete_content(self) -> None:
        """Delete all but `run.json` and the claims."""
        for outside in self.checkpoints_outside:
            outside.parent.delete(outside.name)
        for name in self._list_content():
            self.folder.storage.delete(name)
        remaining = [str(outside) for outside in self.checkpoints_outside if outside.exists()]
        remaining += [f"{self.folder}/{name}" for name in self._list_content()]
        if remaining:
            raise StorageError(
                f"{self.folder} was removed only in part: {', '.join(remaining)} could not be "
                "removed. Change the permissions, and remove the run again"
            )

    def _list_content(self) -> list[str]:
        return [name for name in self.folder.storage.names() if name not in ("run.json", CLAIMS)]


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
    outside = [] if folder.storage.link_target else _checkpoints_outside(folder, runs)
    return Removal(folder, outside)


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
