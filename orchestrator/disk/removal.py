"""Removal of a run with all its files, in a safe order, or of a link to one. Runs in the driver."""

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from orchestrator.disk.checkpoint_folder import find_checkpoint_folder, list_checkpoints
from orchestrator.disk.evaluations import EVALUATIONS
from orchestrator.disk.lease import FOLDER as CLAIMS
from orchestrator.disk.lease import Lease
from orchestrator.disk.listing import list_run_folders
from orchestrator.disk.missing_run import find_lost_target
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from orchestrator.errors import DamagedFile, StorageError, UsageError
from orchestrator.storage import Storage
from orchestrator.units import format_bytes, format_count

_log = logging.getLogger("hookyard")


@dataclass(frozen=True)
class Removal:
    """Removal of a run or a sweep with all its files.

    A link to a folder within it is removed itself, as `rm -r` does. What it leads to stays.
    """

    folder: RunFolder
    checkpoints_outside: Sequence[Storage]
    """Folders of checkpoints outside the run's folder, because of an `out_dir`."""

    def describe(self) -> str:
        """Return what is removed, with its size, and what stays. Lists all files."""
        storage = self.folder.storage
        trials = len(list_run_folders(storage / "trials"))
        kind = f"a sweep of {format_count(trials, 'trial')}" if trials else "a run"
        links = storage.folder_links()
        linked = tuple(f"{link}/" for link in links)
        tree = storage.tree().items()
        sizes = [state.size_bytes for path, state in tree if not path.startswith(linked)]
        status = _find_status(self.folder)
        count = format_count(len(sizes), "file")
        lines = [f"{self.folder}: {kind}, {status}; {count}, {format_bytes(sum(sizes))}"]
        lines += [f"  with its checkpoints in {outside}" for outside in self.checkpoints_outside]
        lines += [
            f"  without {target}, to which {link} is a link"
            for link, target in self._find_kept_folders()
        ]
        return "\n".join(lines)

    def _find_kept_folders(self) -> Iterator[tuple[str, Path]]:
        """Yield each link to a folder that stays, and the folder."""
        for storage in (self.folder.storage, *self.checkpoints_outside):
            own_target = storage.link_target
            if own_target is not None:
                yield str(storage), own_target
                continue
            for name, target in storage.folder_links().items():
                if storage.local and not target.is_relative_to(storage.local.resolve()):
                    yield str(storage / name), target

    def execute(self) -> None:
        """Remove all files, `run.json` last, so that an interrupted removal can be repeated.

        Raises StorageError if files remain; `run.json` then remains too.
        """
        with _leased_if_possible(self.folder):
            for outside in self.checkpoints_outside:
                outside.parent.delete(outside.name)
            for name in self._list_content():
                self.folder.storage.delete(name)
            self._check_is_empty()
        _delete_folder(self.folder)

    def _list_content(self) -> list[str]:
        """Return the names in the folder besides `run.json` and the claims."""
        return [name for name in self.folder.storage.names() if name not in ("run.json", CLAIMS)]

    def _check_is_empty(self) -> None:
        remaining = [str(outside) for outside in self.checkpoints_outside if outside.exists()]
        remaining += [f"{self.folder}/{name}" for name in self._list_content()]
        if remaining:
            raise StorageError(
                f"{self.folder} was removed only in part: {', '.join(remaining)} could not be "
                "removed. Change the permissions, and remove the run again"
            )


@dataclass(frozen=True)
class LinkRemoval:
    """Removal of a link to the folder of a run, as `rm` does.

    The run stays: it may be needed elsewhere, and its own path removes it.
    """

    folder: RunFolder
    target: Path

    def describe(self) -> str:
        """Return where the link leads."""
        if not self.folder.storage.exists():
            return f"{self.folder}: a link to {self.target}, which does not exist"
        command = f"hookyard rm {shlex.quote(str(self.target))}"
        return f"{self.folder}: a link, which alone is removed; to remove its run: {command}"

    def execute(self) -> None:
        """Remove the link; raises UsageError if the run there has a driver."""
        with _leased_if_possible(self.folder):
            pass
        _delete_folder(self.folder)


def plan_removal(path: str) -> Removal | LinkRemoval:
    """Plan the removal of a run, or of a link.

    Args:
        path: Location of a run, of a sweep, or of a link to one; the target of a link may be gone.

    Raises:
        UsageError: It is a trial or running, or another run needs it.
    """
    storage = Storage(path)
    target = find_lost_target(storage)
    if target is not None:
        return LinkRemoval(RunFolder(storage), target)

    folder = RunFolder.open(path)
    runs = [folder, *list_run_folders(folder.storage / "trials")]
    _check_nothing_runs(folder, runs)
    _check_nothing_needs(folder)
    target = folder.storage.link_target
    if target is not None:
        return LinkRemoval(folder, target)
    return Removal(folder, _list_checkpoints_outside(folder, runs))


def _check_nothing_runs(folder: RunFolder, runs: Sequence[RunFolder]) -> None:
    """Raise UsageError if a run, or an evaluation of it or of one of its trials, is running."""
    evaluations = folder.storage.map(lambda run: list_run_folders(run.storage / EVALUATIONS), runs)
    for run in [folder, *chain.from_iterable(evaluations)]:
        if _find_status(run) == "running":
            raise UsageError(f"{run} is running: end it before you remove {folder.name}")


def _check_nothing_needs(folder: RunFolder) -> None:
    """Raise UsageError for a trial, and for a run whose checkpoint another run still needs."""
    root = folder.storage.parent
    if root.name == "trials" and RunFolder(root.parent).exists():
        raise UsageError(f"{folder} is a trial; remove the whole sweep: hookyard rm {root.parent}")
    for other in list_run_folders(root):
        with suppress(DamagedFile):
            parent = other.read_metadata().continued_from
            if parent and is_within(parent.run, folder.storage) and not list_checkpoints(other):
                message = f"{other} continues from {folder}, and has no checkpoint of its own yet"
                raise UsageError(f"{message}: end or remove that first")


def _find_status(folder: RunFolder) -> str:
    try:
        return find_status(folder)
    except DamagedFile as error:
        _log.warning("%s", error)
        return "damaged"


def _list_checkpoints_outside(folder: RunFolder, runs: Sequence[RunFolder]) -> list[Storage]:
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


@contextmanager
def _leased_if_possible(folder: RunFolder) -> Iterator[None]:
    """Hold the lease of a run within the block; without one if the disk is full, for example.

    Raises UsageError if the run has a driver.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(Lease(folder.storage))
        except UsageError as error:
            if not isinstance(error.__cause__, StorageError):
                raise
        yield


def _delete_folder(folder: RunFolder) -> None:
    folder.storage.parent.delete(folder.name)
    if folder.storage.exists():
        raise StorageError(f"{folder} could not be removed: check its permissions")


def is_within(path: str, storage: Storage) -> bool:
    """Return whether a path is that of a folder or of a file in it."""
    return f"{path}/".startswith(f"{storage.path}/")
