"""The rows of all runs in a storage, which the threads of the live page share."""

import json
from hashlib import sha256
from threading import Lock
from time import monotonic

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.disk.media import INDEX as MEDIA
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError
from orchestrator.storage.read_only import ReadOnlyStorage
from orchestrator.tables.run_index import RunIndex

_PAUSE = 4.0
"""Pause after a read, as a multiple of the time that it took."""


class NoSuchRun(UsageError):
    """There is no run at a path."""


class LiveRuns:
    """The rows of all runs in a storage, which are read again after a pause."""

    def __init__(self, storage: ReadOnlyStorage) -> None:
        self.storage = storage
        self.interval_s = storage.read_interval_s
        self._index = RunIndex(storage)
        self._lock = Lock()
        self._next_read = 0.0
        self._table: pa.Table | None = None

    def read(self) -> tuple[pa.Table, str]:
        """Return a row for each run, with its path within the storage, and the number of their
        version.

        Raises UsageError if the storage is not a folder of runs.
        """
        with self._lock:
            began = monotonic()
            if self._table is None or began >= self._next_read:
                self._table = self._index.read()
                ended = monotonic()
                self._next_read = ended + max(self.interval_s, _PAUSE * (ended - began))
            return self._table, str(self._index.version)

    def find(self, path: str) -> tuple[RunFolder, str]:
        """Return the run at a path, and a signature that changes with what its page shows.

        Raises NoSuchRun. A path that is no run's is never looked up in the storage.
        """
        table, _ = self.read()
        is_own = pc.equal(table["path"], path)
        if not pc.any(is_own).as_py():
            raise NoSuchRun(f"There is no run {path} in {self.storage}")
        folder = RunFolder(self.storage, path)
        # A page also shows the trials and evaluations inside.
        is_inside = pc.starts_with(table["path"], f"{path}/")
        rows = table.filter(pc.or_(is_own, is_inside)).select(["path", "status", "signature"])
        states = [rows.to_pylist(), *map(folder.storage.state, ("log.txt", MEDIA))]
        is_running = pc.equal(table.filter(is_own)["status"], "running")
        if pc.any(is_running).as_py():
            states.append([*folder.storage.tree("stats").items()])
        return folder, sha256(json.dumps(states).encode()).hexdigest()
