"""The rows of all ranks as a DataFrame, without superseded ones."""

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
import psutil
import pyarrow as pa

from orchestrator import units
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.columns import (
    COUNTER_TYPES,
    ROW_KEY,
    conform_to,
    narrow_counters,
    sort_rows,
)
from orchestrator.disk.rows.valid_rows import LEADING_COLUMNS, open_valid_rows
from orchestrator.errors import UsageError
from orchestrator.storage import Storage
from orchestrator.tables.conditions import check_columns
from orchestrator.tables.exact_frames import to_frame
from orchestrator.tables.query import read_matching_rows

_WIDTHS = {
    **{name: kind.bit_width // 8 for name, kind in COUNTER_TYPES.items()},
    "phase": 8,
    "node": 16,
}
"""Approximate bytes per value; other columns take 8."""
_LOAD_MEMORY_FACTOR = 4
"""Peak memory of loading a table, as a multiple of its size."""
_SORT_MEMORY_FACTOR = 3
"""Peak memory of sorting and converting rows that are in memory, as a multiple of their size."""


def load(
    storage: Storage,
    attempts: Sequence[Attempt],
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> pd.DataFrame:
    """Return the rows that are not superseded and match the SQL condition `where`, sorted. By
    default all columns.

    `storage` is the run's folder; the run may still be training. Raises UsageError for an unknown
    column, an invalid condition, or more rows than fit in memory.
    """
    source = open_valid_rows(storage, attempts)
    names = source.schema.names
    selected = [*dict.fromkeys([*LEADING_COLUMNS, *names] if columns is None else columns)]
    if isinstance(columns, str):
        check_columns(columns, names)
    if not source.has_rows:
        return to_frame(pa.table({name: pa.nulls(0) for name in selected}))
    check_columns(selected, names)

    needed = [*dict.fromkeys([*selected, *ROW_KEY])]
    if where is None:
        rows = source.data.count_rows()
        width = sum(_WIDTHS.get(name, 8) for name in needed)
        _check_memory(storage, rows, rows * width, _LOAD_MEMORY_FACTOR)
        batches = source.batches(needed)
    else:
        batches = read_matching_rows(source, needed, where)

    read = list(_checking_memory(storage, batches))
    schema = pa.schema([source.schema.field(name) for name in needed])
    table = pa.Table.from_batches(read) if read else schema.empty_table()
    table = sort_rows(narrow_counters(conform_to(table, schema)))
    return to_frame(table.select(selected))


def _checking_memory(
    storage: Storage, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a table; raises UsageError once they are too large to be sorted."""
    size_bytes = 0
    rows = 0
    for batch in batches:
        yield batch
        size_bytes += batch.nbytes
        rows += len(batch)
        _check_memory(storage, rows, size_bytes, _SORT_MEMORY_FACTOR)


def _check_memory(storage: Storage, rows: int, size_bytes: int, memory_factor: int) -> None:
    """Raise UsageError if the table's size times `memory_factor` exceeds the free memory."""
    free = psutil.virtual_memory().available
    needed = memory_factor * size_bytes
    if needed > free:
        raise UsageError(
            f"the table of {storage} does not fit in memory: loading its {rows:,} rows needs"
            f" {units.format_bytes(needed)}, {units.format_bytes(free)} is free; load less with"
            " load_stats(columns, where) or `hookyard stats --columns --where`, or use run.query"
        )
