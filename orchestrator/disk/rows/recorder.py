"""The recorder: buffers the rows of one rank and writes them, with their values on a GPU."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from struct import Struct
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.disk.rows.batches import Batch, Layout, RecentBatches
from orchestrator.disk.rows.device_values import PLAIN, DeviceValues, read_number, read_on_cpu
from orchestrator.disk.rows.rank_files import RankFiles
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
        self._batch = Batch({}, {})
        self._pack = Struct("").pack
        self._pending: deque[tuple[Batch, DeviceValues]] = deque()
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
        self._begin_batch(Batch(labels, layout))

    def append(self, row: dict[str, Any] | None, numbers: Sequence[float] = ()) -> None:
        """Add a row, and flush if there are many or time has passed. The last number is the time by
        `perf_counter`."""
        batch = self._batch
        if not batch.count:
            self._pack = Struct(f"{len(numbers)}d").pack
        batch.numbers.frombytes(self._pack(*numbers))  # a fifth of the time of `extend`
        if row:
            batch.added[batch.count] = {
                k: v if type(v) in PLAIN else read_on_cpu(v) for k, v in row.items()
            }
        batch.count += 1
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

    def _begin_batch(self, batch: Batch) -> None:
        if self._batch.count and self._files:
            self._pending.append((self._batch, DeviceValues(self._batch.added.values())))
        self._batch = batch
        for recent in (self.recent, *self.other_buffers):
            recent.begin(batch)

    def _end_batch(self) -> None:
        if self._batch.count:
            self._begin_batch(Batch(self._batch.labels, self._batch.layout))

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


def _make_row_columns(batch: Batch) -> dict[str, pa.Array]:
    """Return the columns of a batch, whose values on a device have been read."""
    columns = {name: pa.repeat(value, batch.count) for name, value in batch.labels.items()}
    numbers = {name: pa.array(values) for name, values in batch.columns().items()}
    columns.update(numbers)
    if batch.added:
        for name, array in make_columns([*batch.added.values()], numbers).items():
            columns[name] = _place(array, [*batch.added], batch.count)
    return columns


def make_columns(rows: Sequence[dict[str, Any]], known: Collection[str]) -> dict[str, pa.Array]:
    """Return the columns of some dicts, except those in `known`."""
    columns = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        if name not in known:
            columns[name] = _make_array(name, [row.get(name) for row in rows])
    return columns


def _make_array(name: str, values: list[Any]) -> pa.Array:
    kinds = set(map(type, values))
    if type(None) in kinds and len(kinds) > 1:
        indices = [index for index, value in enumerate(values) if value is not None]
        return _place(_make_array(name, [values[index] for index in indices]), indices, len(values))
    if kinds <= {int, float}:
        # Five times as fast as Arrow, which checks the type of each number.
        with suppress(OverflowError):
            return pa.array(np.array(values, dtype=np.float64 if float in kinds else np.int64))

    plain = _to_plain(name, values, kinds)
    texts = [value if isinstance(value, str) else None for value in plain]
    if any(text is not None for text in texts):
        import pyarrow.compute as pc  # a slow import

        numbers = [None if isinstance(value, str) else value for value in plain]
        return pc.coalesce(pa.array(texts), _make_array(name, numbers).cast(pa.string()))

    integers = [value for value in plain if isinstance(value, int)]
    is_large = np.uint64 in kinds or any(value >= 2**63 for value in integers)
    if is_large and {*map(type, plain)} <= {int, type(None)}:
        with suppress(OverflowError, pa.ArrowException):
            return pa.array(plain, pa.uint64())
        if all(value is None or -(2**63) <= value < 2**64 for value in plain):
            return pa.array(plain, pa.decimal128(20))  # as `merge_types` chooses for two files

    if any(map(_needs_float, plain)):
        plain = [float(value) if isinstance(value, int) else value for value in plain]
    with suppress(pa.ArrowException):
        array = pa.array(plain)
        if pa.types.is_null(array.type) or pa.types.is_primitive(array.type):
            return array

    examples = {type(value): value for value in plain if value is not None}
    raise ValueError(f"column '{name}' must hold numbers or text; got {list(examples.values())}")


def _place(array: pa.Array, indices: Sequence[int], count: int) -> pa.Array:
    """Return an array of `count` values with those of `array` at the given indices, and null
    elsewhere."""
    if len(array) == count:
        return array
    sources = np.full(count, -1)
    sources[indices] = np.arange(len(array))
    return array.take(pa.array(sources, mask=sources < 0))


def _to_plain(name: str, values: list[Any], kinds: set[type]) -> list[Any]:
    """Return a column's values as plain ones. Those on a GPU must have been read before."""
    if kinds <= PLAIN:
        return values
    import torch

    plain = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            plain.append(_to_scalar(value))
        elif value.numel() == 1:
            plain.append(_to_scalar(read_number(value)))
        else:
            raise ValueError(
                f"column '{name}' got a tensor of shape {tuple(value.shape)}; record one number per row"
            )
    return plain


def _needs_float(value: Any) -> bool:
    """Return whether whole numbers in the column of a value become floats, so that all of its rows
    have one type."""
    if isinstance(value, bool | float):
        return True
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _to_scalar(value: Any) -> Any:
    plain = value.resolve() if hasattr(value, "resolve") else value
    return plain.item() if hasattr(plain, "item") else plain
