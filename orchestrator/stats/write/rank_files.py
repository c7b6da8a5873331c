"""The files of one rank: growing Arrow streams, later rewritten as Parquet segments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any

import pyarrow as pa

from orchestrator.stats.read.recorded_files import Recorded
from orchestrator.stats.write.checksums import END, sealed
from orchestrator.storage import Storage
from orchestrator.storage.storage import raising_storage_errors

PART_ROWS = 2**11
"""Maximum rows of a part on an object store, where each upload sends all of it. Also the minimum rows of a segment."""
SEGMENT_ROWS = 2**16

logger = logging.getLogger("hookyard")


class _DiskPart:
    """An Arrow stream that grows on a disk, where other processes see each batch immediately."""

    def __init__(self, storage: Storage, path: str, schema: pa.Schema) -> None:
        self.rows, self.schema = 0, schema
        self._file = storage.open_stream(path)
        self._file.write(sealed(schema.serialize()))

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(sealed(batch.serialize()))
        self._file.flush()
        self.rows += batch.num_rows

    def send(self) -> None: ...

    def end(self) -> None:
        with self._file:
            self._file.write(END)


class _ObjectPart:
    """An Arrow stream on an object store, uploaded as a whole whenever it has grown."""

    def __init__(self, storage: Storage, path: str, schema: pa.Schema) -> None:
        self.rows, self.schema = 0, schema
        self._storage, self._path = storage, path
        self._sent = sealed(schema.serialize())
        self._new: list[pa.RecordBatch] = []
        self._ended = False

    def write(self, batch: pa.RecordBatch) -> None:
        self._new.append(batch)
        self.rows += batch.num_rows

    def send(self) -> None:
        new = self._new[:]
        if not new:
            self._sent = b"" if self._ended else self._sent
            return
        [batch] = pa.Table.from_batches(new).combine_chunks().to_batches()
        grown = self._sent + sealed(batch.serialize())
        self._storage.write(self._path, grown + END)
        self._sent = grown
        del self._new[: len(new)]

    def end(self) -> None:
        self._ended = True


@dataclass
class _Table:
    """The files of a table."""

    name: str
    columns: dict[str, pa.DataType] = field(default_factory=dict)
    """Columns seen so far. None is ever removed, so the schema stops changing."""
    part: _DiskPart | _ObjectPart | None = None
    """The open part."""
    parts: list[tuple[Recorded, _DiskPart | _ObjectPart]] = field(default_factory=list)
    """Parts not yet rewritten as segments."""
    number: int = 0
    """Number of the next part."""
    rows: int = 0
    """Rows in segments."""

    patience: int = 0
    """After a failed rewrite, the number of open rows at which to retry."""

    @property
    def open_rows(self) -> int:
        return sum(part.rows for _, part in self.parts)

    @property
    def is_long(self) -> bool:
        """True once open rows are a fifth of all rows. This bounds the numbers of segments and of open rows."""
        return self.open_rows >= max(self.patience, min(max(self.rows // 4, PART_ROWS), SEGMENT_ROWS))

    def end_part(self) -> None:
        if self.part is not None:
            self.part.end()
        self.part = None


class RankFiles:
    """Writer of one rank's rows to parts, a new one for a new column; it compacts parts into segments. Used in workers.

    Parts on a disk are appended to; after a kill they are read up to the last whole batch. On an object store a thread
    uploads grown parts every `upload_interval_s`, and retries after a failure, in `sync` at the latest. A thread
    writes segments too; if that fails, the parts are kept.
    """

    def __init__(self, storage: Storage, folder: str, identity: Mapping[str, Any], upload_interval_s: float) -> None:
        self._storage, self._folder, self._identity = storage, folder, identity
        self._tables = {name: _Table(name) for name in ("rows", "costs")}
        self._uploads, self._upload_interval_s = storage.local is None, upload_interval_s
        self._thread: Thread | None = None
        self._writing, self._sending, self._packing, self._closed = Lock(), Lock(), Lock(), Event()

    def write(self, table: str, arrays: Mapping[str, pa.Array], count: int) -> None:
        """Write `count` rows of a table, `rows` or `costs`. Raises ValueError for a column that changed its type."""
        into = self._tables[table]
        batch = self._batch(into, arrays, count)
        with self._writing, raising_storage_errors(self._storage / self._folder):
            if into.part is not None and (
                into.part.schema != batch.schema or (self._uploads and into.part.rows >= PART_ROWS)
            ):
                into.end_part()
            if into.part is None:
                self._begin_part(into, batch.schema)
            assert into.part is not None
            into.part.write(batch)
        if self._uploads and self._thread is None:
            self._begin_thread(self._upload)
        elif not self._uploads and into.is_long and not (self._thread and self._thread.is_alive()):
            self._begin_thread(self._pack)

    def sync(self) -> None:
        """Wait until other processes can read everything written so far. Raises StorageError."""
        if self._uploads:
            with self._sending:
                self._storage.each(
                    lambda part: part.send(), [part for table in self._tables.values() for _, part in table.parts]
                )

    def close(self) -> None:
        """End all files, and rewrite them as segments."""
        self._closed.set()
        # Each file is closed, also after a failure to end another.
        with self._writing, raising_storage_errors(self._storage / self._folder), ExitStack() as ends:
            for table in self._tables.values():
                ends.callback(table.end_part)
        self.sync()
        self._pack(PART_ROWS)

    def _begin_thread(self, work: Callable[[], None]) -> None:
        self._thread = Thread(target=work, name="rows", daemon=True)
        self._thread.start()

    def _batch(self, table: _Table, arrays: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
        for name, array in arrays.items():
            known = table.columns.get(name)
            if (
                known is None
                or pa.types.is_null(known)
                or (pa.types.is_integer(known) and pa.types.is_floating(array.type))
            ):
                table.columns[name] = array.type
        columns = {name: pa.repeat(value, count) for name, value in self._identity.items()}
        for name, kind in table.columns.items():
            columns[name] = _cast(name, arrays[name], kind) if name in arrays else pa.nulls(count, kind)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _begin_part(self, table: _Table, schema: pa.Schema) -> None:
        identity = int(self._identity.get("attempt", 0)), int(self._identity.get("rank", 0))
        path = f"{self._folder}/{table.name}-{table.number:05d}.arrow"
        table.part = (_ObjectPart if self._uploads else _DiskPart)(self._storage, path, schema)
        table.parts.append((Recorded(*identity, table.number, path), table.part))
        table.number += 1

    def _upload(self) -> None:
        """Upload new rows periodically, in a thread."""
        failing = False
        while not self._closed.wait(self._upload_interval_s):
            try:
                self.sync()
                failing = False
            except Exception as error:  # the `sync` in `close` raises it if it persists
                if not failing:
                    logger.warning("Cannot upload rows of %s; will try again: %s", self._folder, error)
                failing = True
            else:
                self._pack()

    def _pack(self, enough: int = SEGMENT_ROWS) -> None:
        """Rewrite parts as segments if they are long or have `enough` rows, in a thread, and as the files close."""
        from orchestrator.stats.write.segments import pack  # a slow import

        with self._packing:
            for table in self._tables.values():
                if not table.is_long and table.open_rows < enough:
                    continue
                try:
                    with self._writing, raising_storage_errors(self._storage / self._folder):
                        table.end_part()
                        parts = table.parts[:]
                    self.sync()
                    pack(self._storage, [recorded for recorded, _ in parts])
                except Exception as error:  # the parts are kept
                    logger.warning(
                        "Cannot rewrite rows of %s as Parquet; they stay in Arrow files: %s", self._folder, error
                    )
                    table.patience = 2 * table.open_rows
                    continue
                with self._writing:
                    table.parts = table.parts[len(parts) :]
                    table.rows += sum(part.rows for _, part in parts)


def _cast(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(f"column '{name}' has type {kind}, but new rows have {array.type}: {error}") from error
