"""The recorder: buffers the rows of one rank and writes them, with their values on a GPU."""

from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from time import perf_counter, sleep
from typing import Any

import pyarrow as pa

from orchestrator.disk.rows.arrays import make_columns, place_values
from orchestrator.disk.rows.batches import Layout, RecentBatches, RowBatch
from orchestrator.disk.rows.device_values import DeviceValues
from orchestrator.disk.rows.rank_files import RankFiles
from orchestrator.disk.rows.values import PLAIN, read_on_cpu
from orchestrator.storage import Storage


class Recorder:
    """Buffer of one rank's rows, which it flushes as Arrow to the rank's own files. Used in
    workers.

    A row has numbers, whose columns `begin` defines, and a dict of values from hooks: numbers,
    short strings, scalar tensors, or times between CUDA events. Tensors are read when the row is
    flushed, so recording never waits for a device. Without a storage only the last rows are kept,
    in `recent`.
    """

    def __init__(
        self,
        storage: Storage | None = None,
        folder: str = "",
        identity: Mapping[str, Any] | None = None,
        *,
        flush_rows: int = 4096,
        flush_s: float = 1.0,
        upload_interval_s: float = 30.0,
        recent: int = 1000,
    ) -> None:
        self._files = (
            RankFiles(storage, folder, identity or {}, upload_interval_s) if storage else None
        )
        self._flush_rows = flush_rows
        self._flush_s = flush_s
        self._flushed_at = perf_counter()
        self._batch = RowBatch({}, {})
        self._pack = Struct("").pack
        self._pending: deque[tuple[RowBatch, DeviceValues]] = deque()
        self._cost_rows: list[dict[str, Any]] = []
        self._has_lost_device = False
        self.incomplete_rows = 0
        """Rows without the values of a lost device."""
        self.recent = RecentBatches(recent)
        self.recent.begin(self._batch)
        self.other_buffers: Sequence[RecentBatches] = ()
        """Other buffers of recent rows."""

    def begin(self, labels: Mapping[str, Any], layout: Layout) -> None:
        """Set the labels and the columns of the next rows."""
        self._begin_batch(RowBatch(labels, layout))

    def append(self, row: dict[str, Any] | None, numbers: Sequence[float] = ()) -> None:
        """Add a row, and flush if there are many or time has passed. The last number is the time by
        `perf_counter`."""
        batch = self._batch
        if not batch.count:
            self._pack = Struct(f"{len(numbers)}d").pack
        added = None
        if row:
            added = {
                name: value if type(value) in PLAIN else read_on_cpu(value)
                for name, value in row.items()
            }
        batch.append(self._pack(*numbers), added)
        now = numbers[-1] if numbers else perf_counter()
        if batch.count >= self._flush_rows or now - self._flushed_at >= self._flush_s:
            self._end_batch()
            self._flush_pending(ready_only=True)
            self._flushed_at = now

    def append_costs(self, rows: Sequence[dict[str, Any]]) -> None:
        if self._files:
            self._cost_rows.extend(rows)

    def sync(self) -> None:
        """Write all rows recorded so far. Raises StorageError."""
        self._end_batch()
        self._flush_pending(ready_only=False)
        if not self._files:
            return
        if self._cost_rows:
            rows = self._cost_rows
            self._cost_rows = []
            self._files.write("costs", make_columns(rows, {}), len(rows))
        self._files.sync()

    def flush_within(self, timeout_s: float) -> None:
        """Flush the rows whose values the device completes within `timeout_s`."""
        self._end_batch()
        deadline = perf_counter() + timeout_s
        self._flush_pending(ready_only=True)
        while self._pending and perf_counter() < deadline:
            sleep(0.01)
            self._flush_pending(ready_only=True)

    def drop_device_values(self) -> None:
        """From now on, leave out values that are on the device. Any thread may call this."""
        self._has_lost_device = True

    def close(self) -> None:
        """Write every row and close the files. Raises StorageError."""
        try:
            self.sync()
        finally:
            if self._files:
                self._files.close()

    def _begin_batch(self, batch: RowBatch) -> None:
        if self._batch.count and self._files:
            self._pending.append((self._batch, DeviceValues(self._batch.added.values())))
        self._batch = batch
        for recent in (self.recent, *self.other_buffers):
            recent.begin(batch)

    def _end_batch(self) -> None:
        if self._batch.count:
            self._begin_batch(RowBatch(self._batch.labels, self._batch.layout))

    def _flush_pending(self, *, ready_only: bool) -> None:
        while self._pending:
            batch, on_device = self._pending[0]
            if ready_only and not self._has_lost_device and not on_device.ready():
                return
            self._pending.popleft()
            if not self._has_lost_device:
                on_device.read()
            if self._has_lost_device:  # perhaps only since `read`
                self.incomplete_rows += on_device.drop()
            assert self._files is not None
            self._files.write("rows", _make_row_columns(batch), batch.count)


def _make_row_columns(batch: RowBatch) -> dict[str, pa.Array]:
    """Return the columns of a batch, whose values on a device have been read."""
    columns = {name: pa.repeat(value, batch.count) for name, value in batch.labels.items()}
    numbers = {name: pa.array(values) for name, values in batch.columns().items()}
    columns.update(numbers)
    if batch.added:
        for name, array in make_columns([*batch.added.values()], numbers).items():
            columns[name] = place_values(array, [*batch.added], batch.count)
    return columns
