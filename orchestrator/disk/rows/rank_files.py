"""The files of one rank: parts that grow, later rewritten as Parquet segments."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from threading import Event, Lock, Thread
from typing import Any

import pyarrow as pa

from orchestrator.disk.rows.columns import check_case, merge_types
from orchestrator.disk.rows.parts import Part, open_part
from orchestrator.disk.rows.recorded_files import RecordedFile
from orchestrator.storage import Storage
from orchestrator.storage.disk_errors import raising_storage_errors

MIN_SEGMENT_ROWS = 2**11
"""Minimum rows of a segment, as long as its run records."""
SEGMENT_ROWS = 2**16

logger = logging.getLogger("hookyard")


@dataclass
class _Table:
    """Files of a table."""

    name: str
    columns: dict[str, pa.DataType] = field(default_factory=dict)
    """Columns seen so far. None is ever removed, so the schema stops changing."""
    current_part: Part | None = None
    """Part to which rows are appended."""
    parts: list[tuple[RecordedFile, Part]] = field(default_factory=list)
    """Parts not yet rewritten as segments."""
    number: int = 0
    """Number of the next part."""
    rows: int = 0
    """Rows in segments."""
    retry_rows: int = 0
    """After a failed rewrite, the number of open rows at which to retry."""

    @property
    def open_rows(self) -> int:
        return sum(part.rows for _, part in self.parts)

    @property
    def should_rewrite(self) -> bool:
        """True once open rows are a fifth of all rows. This bounds the numbers of segments and of
        open rows."""
        due_rows = min(max(self.rows // 4, MIN_SEGMENT_ROWS), SEGMENT_ROWS)
        return self.open_rows >= max(self.retry_rows, due_rows)

    def end_part(self) -> None:
        if self.current_part is not None:
            self.current_part.end()
        self.current_part = None


class RankFiles:
    """Writer of one rank's rows. Used in workers.

    It appends batches to a part, starts another part for a new column, and rewrites parts as
    segments in a thread. If rewriting fails, it keeps the parts. After a kill, parts on a disk can
    be read up to the last whole batch. On an object store the thread uploads grown parts every
    `upload_interval_s`; `sync` retries a failure at the latest.
    """

    def __init__(
        self, storage: Storage, folder: str, identity: Mapping[str, Any], upload_interval_s: float
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._identity = identity
        self._is_remote = storage.local is None
        self._upload_interval_s = upload_interval_s
        self._tables = {name: _Table(name) for name in ("rows", "costs")}
        self._thread: Thread | None = None
        self._write_lock = Lock()
        """Guards the parts of the tables, which the trainer's thread appends to."""
        self._upload_lock = Lock()
        """Lets one thread upload at a time; the trainer may append meanwhile."""
        self._rewrite_lock = Lock()
        """Lets one thread rewrite parts at a time: the own thread, or `close`."""
        self._closed = Event()

    def write(self, table: str, arrays: Mapping[str, pa.Array], count: int) -> None:
        """Write `count` rows of a table, `rows` or `costs`."""
        target = self._tables[table]
        batch = self._make_batch(target, arrays, count)
        with self._write_lock, raising_storage_errors(self._storage / self._folder):
            part = target.current_part
            if part is None or not part.has_room_for(batch):
                target.end_part()
                part = self._start_part(target, batch.schema)
            part.write(batch)

        if self._is_remote:
            if self._thread is None:
                self._start_thread(self._upload)
        elif target.should_rewrite and not (self._thread and self._thread.is_alive()):
            self._start_thread(self._rewrite_parts)

    def sync(self) -> None:
        """Wait until other processes can read everything written so far. Raises StorageError."""
        parts = [*chain.from_iterable(table.parts for table in self._tables.values())]
        lock = self._upload_lock if self._is_remote else self._write_lock
        with lock, raising_storage_errors(self._storage / self._folder):
            self._storage.map(lambda part: part[1].sync(), parts)

    def close(self) -> None:
        """End all files, and rewrite them as segments."""
        self._closed.set()
        # Each file is closed, also after a failure to end another.
        with (
            self._write_lock,
            raising_storage_errors(self._storage / self._folder),
            ExitStack() as ends,
        ):
            for table in self._tables.values():
                ends.callback(table.end_part)
        self.sync()
        self._rewrite_parts(MIN_SEGMENT_ROWS)

    def _start_thread(self, work: Callable[[], None]) -> None:
        self._thread = Thread(target=work, name="rows", daemon=True)
        self._thread.start()

    def _make_batch(
        self, table: _Table, arrays: Mapping[str, pa.Array], count: int
    ) -> pa.RecordBatch:
        if not arrays.keys() <= table.columns.keys():
            check_case([*self._identity, *table.columns, *arrays])
        for name, array in arrays.items():
            table.columns[name] = merge_types(table.columns.get(name, array.type), array.type)

        columns = {name: pa.repeat(value, count) for name, value in self._identity.items()}
        for name, data_type in table.columns.items():
            if name in arrays:
                columns[name] = arrays[name].cast(data_type, safe=False)
            else:
                columns[name] = pa.nulls(count, data_type)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _start_part(self, table: _Table, schema: pa.Schema) -> Part:
        path = f"{self._folder}/{table.name}-{table.number:05d}.arrow"
        part = open_part(self._storage, path, schema)
        attempt = int(self._identity.get("attempt", 0))
        rank = int(self._identity.get("rank", 0))
        table.parts.append((RecordedFile(attempt, rank, table.number, path), part))
        table.number += 1
        table.current_part = part
        return part

    def _upload(self) -> None:
        """Upload new rows periodically, and rewrite parts that are due. Runs in a thread."""
        is_failing = False
        while not self._closed.wait(self._upload_interval_s):
            try:
                self.sync()
                is_failing = False
            except Exception as error:  # the `sync` in `close` raises it if it persists
                if not is_failing:
                    message = "Cannot upload rows of %s; will try again: %s"
                    logger.warning(message, self._folder, error)
                is_failing = True
            else:
                self._rewrite_parts()

    def _rewrite_parts(self, min_rows: int = SEGMENT_ROWS) -> None:
        """Rewrite each table's parts if they are due or have `min_rows` rows. Called in a thread
        and by `close`."""
        from orchestrator.disk.rows.compaction import compact_parts  # a slow import

        with self._rewrite_lock:
            for table in self._tables.values():
                if not table.should_rewrite and table.open_rows < min_rows:
                    continue
                try:
                    with self._write_lock, raising_storage_errors(self._storage / self._folder):
                        table.end_part()
                        parts = table.parts[:]
                    self.sync()
                    compact_parts(self._storage, [recorded for recorded, _ in parts])
                except Exception as error:  # the parts are kept
                    message = "Cannot rewrite rows of %s as Parquet; they stay in Arrow files: %s"
                    logger.warning(message, self._folder, error)
                    table.retry_rows = 2 * table.open_rows
                    continue
                with self._write_lock:
                    table.parts = table.parts[len(parts) :]
                    table.rows += sum(part.rows for _, part in parts)
