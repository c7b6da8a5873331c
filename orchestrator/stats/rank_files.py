"""The files in which one rank keeps its tables: Arrow streams on a disk, or objects that are sent to a store."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import IO, Any

import pyarrow as pa

from orchestrator.stats.checksums import END, sealed
from orchestrator.storage import Storage
from orchestrator.storage.storage import telling_of

logger = logging.getLogger("hookyard")


@dataclass
class _Table:
    """A table on its way to files, and the file that is open."""

    name: str
    columns: dict[str, pa.DataType] = field(default_factory=dict)
    """Columns seen so far, in order; once seen a column stays, so that the file's schema settles."""
    file: IO[bytes] | None = None
    path: str = ""
    schema: pa.Schema | None = None
    part: int = 0
    ended: deque[tuple[IO[bytes], str]] = field(default_factory=deque)
    """Files that nothing more is written to, and where they belong."""

    def end_file(self) -> None:
        """Ends the file that is open; what is written next goes to a new one."""
        if self.file is None:
            return
        self.file.write(END)
        self.file.flush()
        self.ended.append((self.file, self.path))
        self.file = None


class RankFiles:
    """Writes batches of rows to Arrow streams, in a new file where a new column appears. Worker process.

    A folder's files are appended to, and what a kill cut short is read up to its last whole batch. On an object store
    nothing can be appended to: there a thread sends what is new every `upload_interval_s` as an object of its own. What
    cannot be sent is kept and tried again, by `sync` at the latest.
    """

    def __init__(self, storage: Storage, folder: str, identity: Mapping[str, Any], upload_interval_s: float) -> None:
        self._storage, self._folder, self._identity = storage, folder, identity
        self._tables = {name: _Table(name) for name in ("rows", "costs")}
        self._uploads, self._upload_interval_s = storage.local is None, upload_interval_s
        self._uploader: Thread | None = None
        self._writing, self._sending, self._closed = Lock(), Lock(), Event()

    def write(self, table: str, arrays: Mapping[str, pa.Array], count: int) -> None:
        """Adds a batch of `count` rows to a table, `rows` or `costs`. Raises ValueError for a column that held something
        else before."""
        into = self._tables[table]
        batch = self._batch(into, arrays, count)
        with self._writing, telling_of(self._storage / self._folder):
            if into.schema != batch.schema:
                into.end_file()
            if into.file is None:
                self._open(into, batch.schema)
            assert into.file is not None
            into.file.write(sealed(batch.serialize()))
            into.file.flush()
        if self._uploads and self._uploader is None:
            self._uploader = Thread(target=self._upload, name="rows-upload", daemon=True)
            self._uploader.start()

    def sync(self) -> None:
        """Returns once all that was written can be read by others; raises StorageError where that cannot be."""
        if self._uploads:
            self._send()

    def close(self) -> None:
        """Ends all files, and puts them into their places."""
        self._closed.set()
        self._send()

    def _batch(self, table: _Table, arrays: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
        for name, array in arrays.items():
            known = table.columns.get(name)
            if known is None or pa.types.is_null(known) or (pa.types.is_integer(known) and pa.types.is_floating(array.type)):
                table.columns[name] = array.type
        columns = {name: pa.repeat(value, count) for name, value in self._identity.items()}
        for name, kind in table.columns.items():
            columns[name] = _cast(name, arrays[name], kind) if name in arrays else pa.nulls(count, kind)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _open(self, table: _Table, schema: pa.Schema) -> None:
        table.path = f"{self._folder}/{table.name}-{table.part:05d}.arrow"
        table.file = self._storage.open_stream(table.path)
        table.file.write(sealed(schema.serialize()))
        table.schema = schema
        table.part += 1

    def _upload(self) -> None:
        """Sends what is new now and then, so that training need not wait for it. In a thread of its own."""
        failing = False
        while not self._closed.wait(self._upload_interval_s):
            try:
                self._send()
                failing = False
            except Exception as error:  # whatever it is, `sync` meets it too and raises it
                if not failing:
                    logger.warning("rows of %s cannot be sent; they are kept, and tried again: %s", self._folder, error)
                failing = True

    def _send(self) -> None:
        """Ends the present files, and puts all that have ended into their places. By one thread at a time."""
        with self._sending:
            for table in self._tables.values():
                with self._writing:
                    table.end_file()
                while table.ended:
                    file, path = table.ended[0]
                    self._storage.send(file, path)
                    file.close()
                    table.ended.popleft()


def _cast(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(f"column '{name}' holds {kind} and was given {array.type}: {error}") from error
