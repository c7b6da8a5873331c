"""Signatures of runs: texts that differ once a run has changed, so that only those runs are read
again."""

import re
from collections.abc import Iterator
from contextlib import suppress
from os import F_OK, DirEntry, PathLike, access, scandir, stat
from time import time

from orchestrator.disk.evaluations import EVALUATIONS
from orchestrator.disk.reports import REPORTS
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
            age = " recent" if is_recent else ""
            line = f"{match['file']} {state.size_bytes} {state.modified}{age}"
            states.setdefault(match["run"], []).append(line)
    return {path: "\n".join(parts) for path, parts in states.items()}
