"""Parts of one rank's rows: Arrow streams that grow, on a disk or on an object store."""

from collections.abc import Sequence
from threading import Lock
from typing import Protocol

import pyarrow as pa

from orchestrator.disk.rows.file_format import END_OF_STREAM, make_stream, make_stream_start
from orchestrator.storage import Storage

PART_ROWS = 2**11
"""Rows of a part on an object store from which the next part begins, because each upload sends all of
a part."""


class Part(Protocol):
    """An Arrow stream to which batches of rows are appended."""

    rows: int
    """Number of rows appended so far."""

    def has_room_for(self, batch: pa.RecordBatch) -> bool:
        """Return whether a batch can be appended: it has the columns of the part."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""

    def sync(self) -> None:
        """Make what was appended visible to other processes; raises StorageError."""

    def end(self) -> None:
        """End the stream: nothing is appended any more."""


class DiskPart:
    """An Arrow stream that grows on a disk, where other processes see each batch immediately."""

    def __init__(self, storage: Storage, path: str, schema: pa.Schema) -> None:
        self.rows = 0
        self._schema = schema
        self._file = storage.open_stream(path, make_stream_start(schema))

    def has_room_for(self, batch: pa.RecordBatch) -> bool:
        return bool(self._schema == batch.schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(batch.serialize())
        self._file.flush()
        self.rows += batch.num_rows

    def sync(self) -> None:
        """Do nothing: each write is flushed."""

    def end(self) -> None:
        with self._file:
            self._file.write(END_OF_STREAM)


class ObjectPart:
    """An Arrow stream on an object store, uploaded as a whole whenever it has grown.

    One thread writes and ends, others may sync.
    """

    def __init__(self, storage: Storage, path: str, schema: pa.Schema) -> None:
        self.rows = 0
        self._schema = schema
        self._storage = storage
        self._path = path
        self._uploaded = b""
        """Serialized batches that were uploaded; dropped once the part has ended."""
        self._new: list[pa.RecordBatch] = []
        """Batches that were not uploaded yet."""
        self._has_ended = False
        self._sync_lock = Lock()
        """Lets one thread upload at a time; another may append meanwhile."""

    def has_room_for(self, batch: pa.RecordBatch) -> bool:
        return bool(self._schema == batch.schema) and self.rows < PART_ROWS

    def write(self, batch: pa.RecordBatch) -> None:
        self._new.append(batch)
        self.rows += batch.num_rows

    def sync(self) -> None:
        with self._sync_lock:
            # In this order, because another thread writes and ends.
            has_ended = self._has_ended
            new = self._new[:]
            if new:
                self._upload(new)
            elif has_ended:
                self._uploaded = b""

    def end(self) -> None:
        self._has_ended = True

    def _upload(self, new: Sequence[pa.RecordBatch]) -> None:
        [batch] = pa.Table.from_batches(new).combine_chunks().to_batches()
        batches = self._uploaded + bytes(batch.serialize())
        self._storage.write(self._path, make_stream(self._schema, batches))
        self._uploaded = batches
        del self._new[: len(new)]


def open_part(storage: Storage, path: str, schema: pa.Schema) -> Part:
    """Return a new part.

    Args:
        storage: The run's folder.
        path: Path of the part in the folder.
        schema: Columns of the part.
    """
    kind = DiskPart if storage.local else ObjectPart
    return kind(storage, path, schema)
