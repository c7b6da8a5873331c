"""The runs in a storage."""

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from os import F_OK, DirEntry, PathLike, access, scandir, stat
from pathlib import Path
from time import time

from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.reports import REPORTS
from orchestrator.disk.run_folder import EVALUATIONS, RunFolder
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.storage import Storage
from orchestrator.storage.disk_errors import raising_storage_errors

_SIGNED = ("run.json", "experiment.yaml", REPORTS)
"""Files of a run whose states are its signature, besides those of its attempts."""
_SIGNED_LOCALLY = tuple(sorted((*_SIGNED, "stats")))
"""On a disk, a new attempt changes the folder `stats`."""
_INSIDE = ("trials", EVALUATIONS)
"""Folders of a run or a sweep that hold runs."""
_SIGNED_PATH = re.compile(
    rf"(?P<run>[^/]+(?:/(?:{'|'.join(_INSIDE)})/[^/]+)*)"
    rf"/(?P<file>{'|'.join(map(re.escape, _SIGNED))}|stats/[^/]+/attempt\.json)"
)
_RECENT_S = 2.0
"""Age up to which a remote file's signature is another one than later, so that it is read again."""
_log = logging.getLogger("hookyard")


def list_run_folders(storage: Storage) -> list[RunFolder]:
    """Return the runs and sweeps in a storage by name; a folder that lost its `run.json` is skipped
    with a warning."""
    folders = [RunFolder(storage, name) for name in storage.names()]
    exists = storage.map(RunFolder.exists, folders)

    runs = []
    for folder, is_run in zip(folders, exists, strict=True):
        if is_run:
            runs.append(folder)
        elif lost := folder.find_lost_metadata():
            _log.warning("%s", lost)
    return runs


def list_metadata(storage: str | Path) -> list[tuple[RunFolder, RunMetadata | DamagedFile]]:
    """Return runs and sweeps, damaged ones first, then the oldest; raises UsageError for an
    unreachable storage."""
    root = open_storage(storage)
    folders = [RunFolder(root, name) for name in root.names()]
    results = zip(folders, root.map(_read_metadata, folders), strict=True)
    runs = [(folder, metadata) for folder, metadata in results if metadata is not None]

    def get_start(run: tuple[RunFolder, RunMetadata | DamagedFile]) -> str:
        return "" if isinstance(run[1], DamagedFile) else run[1].started

    return sorted(runs, key=get_start)


def _read_metadata(folder: RunFolder) -> RunMetadata | DamagedFile | None:
    try:
        return folder.read_metadata()
    except DamagedFile as error:
        return error if folder.exists() else folder.find_lost_metadata()


def open_storage(storage: str | Path) -> Storage:
    """Return a storage that can be reached; raises UsageError otherwise, and for a file."""
    for path in (Path(storage), *Path(storage).parents):
        if path.is_file():
            raise UsageError(f"{path} is a file; --storage names the folder that holds the runs")
    root = Storage(storage)
    root.reach()
    return root


def check_runs_folder(storage: str | Path) -> None:
    """Raise UsageError if a storage without runs is not a folder of runs."""
    if not Storage(storage).exists():
        raise UsageError(
            f"the folder {storage} does not exist; --storage names the folder that holds the runs"
        )
    if RunFolder(storage).exists():
        raise UsageError(
            f"{storage} is a run, not a folder of runs. To see it: hookyard show {storage}"
        )


def list_signatures(storage: Storage) -> dict[str, str]:
    """Return a signature of each run, sweep, trial and evaluation by its path in the storage.

    It is another one after its metadata, experiment, attempts or reports have changed. No file is
    read: a local folder is listed run by run, a remote storage as a whole.
    """
    if storage.local is None:
        return _sign_remote(storage)
    with raising_storage_errors(storage.local):
        return dict(_sign_local(storage.local))


def _sign_local(folder: str | PathLike[str], parent: str = "") -> Iterator[tuple[str, str]]:
    for run in _scan(folder):
        path = f"{parent}{run.name}"
        # Asking for each file takes half as long as listing the folder.
        states = [_sign_file(run.path, name) for name in _SIGNED_LOCALLY]
        if any(states):
            yield path, "\n".join(filter(None, states))
        for name in _INSIDE:
            if access(f"{run.path}/{name}", F_OK):
                yield from _sign_local(f"{run.path}/{name}", f"{path}/{name}/")


def _sign_file(folder: str, name: str) -> str:
    """Return the state of a file, or of the folder `stats`; empty if it does not exist."""
    try:
        status = stat(f"{folder}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return f"{name} {status.st_size} {status.st_mtime_ns} {status.st_ino}"


def _scan(folder: str | PathLike[str]) -> list[DirEntry[str]]:
    """Return the entries of a folder; none for a file, or for a folder that has just been removed."""
    with suppress(FileNotFoundError, NotADirectoryError), scandir(folder) as entries:
        return [*entries]
    return []


def _sign_remote(storage: Storage) -> dict[str, str]:
    now = time()
    states: dict[str, list[str]] = {}
    for file, state in storage.tree().items():
        match = _SIGNED_PATH.fullmatch(file)
        if match:
            # The store's clock may have whole seconds, in which a file can change again.
            is_recent = state.modified is not None and now - state.modified < _RECENT_S
            version = f"{state.size_bytes} {state.modified}{' recent' if is_recent else ''}"
            states.setdefault(match["run"], []).append(f"{match['file']} {version}")
    return {path: "\n".join(parts) for path, parts in states.items()}
