"""A table of one rank, in parts that grow."""

from collections.abc import Mapping
from threading import Lock
from typing import Any

import pyarrow as pa

from orchestrator.disk.rows.columns import check_case, merge_types
from orchestrator.disk.rows.parts import Part, open_part
from orchestrator.disk.rows.recorded_files import RecordedFile, TableName
from orchestrator.storage import Storage
from orchestrator.storage.disk_errors import raising_storage_errors


class RankTable:
    """A table of one rank: appends its rows to a part, and starts another part for a new column.

    One thread appends. Another may end the parts, to rewrite them.
    """

    def __init__(
        self, storage: Storage, folder: str, name: TableName, identity: Mapping[str, Any]
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._name = name
        self._identity = identity
        self._columns: dict[str, pa.DataType] = {}
        """Columns seen so far. None is ever removed, so the schema stops changing."""
        self._current_part: Part | None = None
        """Part to which rows are appended."""
        self._number = 0
        """Number of the next part."""
        self._lock = Lock()
        """Guards the current part and the list of parts."""
        self.parts: list[tuple[RecordedFile, Part]] = []
        """Parts not yet rewritten as segments."""
        self.segment_rows = 0
        """Rows in segments."""

    @property
    def open_rows(self) -> int:
        """Rows in parts."""
        return sum(part.rows for _, part in self.parts)

    def append(self, arrays: Mapping[str, pa.Array], count: int) -> None:
        """Append `count` rows. Raises StorageError."""
        batch = self._make_batch(arrays, count)
        with self._lock, raising_storage_errors(self._storage / self._folder):
            part = self._current_part
            if part is None or not part.has_room_for(batch):
                self._end_current_part()
                part = self._start_part(batch.schema)
            part.write(batch)

    def sync(self) -> None:
        """Wait until other processes can read all rows. Raises StorageError."""
        self._storage.map(lambda part: part[1].sync(), self.parts[:])

    def end_parts(self) -> list[tuple[RecordedFile, Part]]:
        """End the current part, so that the next rows begin another one, and return all parts.
        Raises StorageError."""
        with self._lock, raising_storage_errors(self._storage / self._folder):
            self._end_current_part()
            return self.parts[:]

    def replace_parts(self, count: int) -> None:
        """Count the rows of the oldest `count` parts as rows of a segment."""
        with self._lock:
            self.segment_rows += sum(part.rows for _, part in self.parts[:count])
            self.parts = self.parts[count:]

    def _end_current_part(self) -> None:
        # A part that could not be ended is closed nevertheless, so rows need another one.
        part = self._current_part
        self._current_part = None
        if part is not None:
            part.end()

    def _start_part(self, schema: pa.Schema) -> Part:
        path = f"{self._folder}/{self._name}-{self._number:05d}.arrow"
        part = open_part(self._storage, path, schema)
        attempt = int(self._identity.get("attempt", 0))
        rank = int(self._identity.get("rank", 0))
        self.parts.append((RecordedFile(attempt, rank, self._number, path), part))
        self._number += 1
        self._current_part = part
        return part

    def _make_batch(self, arrays: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
        if not arrays.keys() <= self._columns.keys():
            check_case([*self._identity, *self._columns, *arrays])
        for name, array in arrays.items():
            known_type = self._columns.get(name, array.type)
            self._columns[name] = merge_types(known_type, array.type)

        columns = {name: pa.repeat(value, count) for name, value in self._identity.items()}
        for name, data_type in self._columns.items():
            if name in arrays:
                columns[name] = arrays[name].cast(data_type, safe=False)
            else:
                columns[name] = pa.nulls(count, data_type)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
