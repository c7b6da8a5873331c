"""The recorder: takes the rows of one rank and lets none be lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa

from orchestrator.storage import Storage


class Sink(Protocol):
    """Where batches of rows go besides the rank's own files: the collector, for the live view."""

    def push(self, table: str, batch: bytes) -> None:
        """Takes an Arrow IPC stream of one batch, without making the training wait."""


@dataclass
class _Table:
    """Rows of one table waiting to be flushed, and the file they go to."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    columns: dict[str, pa.DataType] = field(default_factory=dict)
    """Columns seen so far, in order; once seen a column stays, so that the file's schema settles."""
    file: IO[bytes] | None = None
    writer: Any = None
    schema: pa.Schema | None = None
    part: int = 0


class Recorder:
    """Buffers the rows of one rank and flushes them as Arrow to its own files, and to a sink. Worker process.

    A row is a dict; values are numbers, short strings, tensors of one element (read when the row is flushed, so that
    recording never waits for a device) or spans between CUDA events. Files are Arrow streams that are appended to; a
    new file begins where a new column appears. A file that a kill cut short is read up to its last whole batch.
    Without a folder and a sink, rows are dropped.
    """

    def __init__(
        self,
        storage: Storage | None = None,
        folder: str = "",
        identity: Mapping[str, Any] | None = None,
        sink: Sink | None = None,
        *,
        flush_rows: int = 512,
        flush_s: float = 1.0,
    ) -> None:
        self._storage, self._folder, self._sink = storage, folder, sink
        self._identity = dict(identity or {})
        self._flush_rows, self._flush_s = flush_rows, flush_s
        self._flushed_at = monotonic()
        self._rows = _Table("rows")
        self._costs = _Table("costs")
        self._idle = storage is None and sink is None

    def append(self, row: dict[str, Any]) -> None:
        """Takes a row; flushes when enough have gathered or enough time has passed."""
        if self._idle:
            return
        rows = self._rows.rows
        rows.append(row)
        if len(rows) >= self._flush_rows or monotonic() - self._flushed_at >= self._flush_s:
            self._flush(self._rows, ready_only=True)
            self._flushed_at = monotonic()

    def append_costs(self, rows: Sequence[dict[str, Any]]) -> None:
        """Takes rows of the hooks' ledger."""
        if not self._idle:
            self._costs.rows.extend(rows)

    def sync(self) -> None:
        """Puts every row taken so far on disk; on an object store this closes the present files."""
        for table in (self._rows, self._costs):
            self._flush(table, ready_only=False)
            if table.file is not None and self._storage is not None and self._storage.local is None:
                self._close(table)

    def close(self) -> None:
        """Flushes everything and closes the files."""
        self.sync()
        for table in (self._rows, self._costs):
            self._close(table)

    def _flush(self, table: _Table, *, ready_only: bool) -> None:
        count = _ready(table.rows) if ready_only else len(table.rows)
        if count == 0:
            return
        rows, table.rows = table.rows[:count], table.rows[count:]
        batch = self._batch(table, rows)
        if self._storage is not None:
            self._write(table, batch)
        if self._sink is not None:
            self._sink.push(table.name, _stream(batch))

    def _batch(self, table: _Table, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        names = _names(rows, table.columns)
        arrays = {name: _array(name, [row.get(name) for row in rows]) for name in names}
        for name, array in arrays.items():
            known = table.columns.get(name)
            if known is None or pa.types.is_null(known) or (pa.types.is_integer(known) and pa.types.is_floating(array.type)):
                table.columns[name] = array.type
        columns = [_cast(name, arrays[name], table.columns[name]) for name in names]
        fixed = {name: pa.array([value] * len(rows)) for name, value in self._identity.items()}
        return pa.RecordBatch.from_arrays([*fixed.values(), *columns], names=[*fixed, *names])

    def _write(self, table: _Table, batch: pa.RecordBatch) -> None:
        if table.writer is not None and table.schema != batch.schema:
            self._close(table)
        if table.writer is None:
            self._open(table, batch.schema)
        table.writer.write_batch(batch)
        assert table.file is not None
        table.file.flush()

    def _open(self, table: _Table, schema: pa.Schema) -> None:
        assert self._storage is not None
        table.file = self._storage.open_stream(f"{self._folder}/{table.name}-{table.part:05d}.arrow")
        table.writer = pa.ipc.new_stream(table.file, schema)
        table.schema = schema
        table.part += 1

    @staticmethod
    def _close(table: _Table) -> None:
        if table.writer is None:
            return
        table.writer.close()
        assert table.file is not None
        table.file.close()
        table.writer = table.file = None


def _ready(rows: list[dict[str, Any]]) -> int:
    """How many rows from the first on hold no span that the device has yet to pass."""
    if not rows or not any(hasattr(value, "ready") for value in rows[-1].values()):
        return len(rows)
    for index, row in enumerate(rows):
        if not all(value.ready() for value in row.values() if hasattr(value, "ready")):
            return index
    return len(rows)


def _names(rows: list[dict[str, Any]], known: Collection[str]) -> list[str]:
    """The columns known, then those that these rows have beside them, in the order in which they come."""
    if set().union(*rows) <= set(known):
        return list(known)
    return list(dict.fromkeys(chain(known, *rows)))


def _array(name: str, values: list[Any]) -> pa.Array:
    kinds = set(map(type, values))
    if kinds <= {int, float}:
        # Arrow asks each Python number what it is; NumPy is told, and takes a fifth of the time.
        with suppress(OverflowError):
            return pa.array(np.array(values, dtype=np.float64 if float in kinds else np.int64))
    plain = _values(name, values, kinds)
    try:
        return pa.array(plain)
    except pa.ArrowException as error:
        kinds = {type(value): value for value in plain if value is not None}
        raise ValueError(f"column '{name}' takes text or numbers, not both; it was given {list(kinds.values())}") from error


def _cast(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(f"column '{name}' holds {kind} and was given {array.type}: {error}") from error


def _values(name: str, values: list[Any], kinds: set[type]) -> list[Any]:
    """Plain values of a column; device tensors come over in one transfer."""
    import torch

    if kinds <= {int, float, str, bool, type(None)}:
        return [value if value is None else float(value) for value in values] if {int, float} <= kinds else values
    tensors = {index: value for index, value in enumerate(values) if isinstance(value, torch.Tensor)}
    plain = [value.resolve() if hasattr(value, "resolve") else value for value in values]
    if tensors:
        wrong = next((value for value in tensors.values() if value.numel() != 1), None)
        if wrong is not None:
            raise ValueError(f"column '{name}' was given a tensor of shape {tuple(wrong.shape)}; a row takes one number")
        numbers = torch.stack([value.detach().reshape(()).double() for value in tensors.values()]).tolist()
        for index, number in zip(tensors, numbers, strict=True):
            plain[index] = number
    return [value.item() if hasattr(value, "item") else value for value in plain]


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
