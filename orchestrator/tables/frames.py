"""Rows and hook costs of all ranks as DataFrames, without superseded ones."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Literal, cast

import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator import units
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.columns import (
    COUNTER_TYPES,
    NAME_COLUMNS,
    ROW_KEY,
    conform_to,
    narrow_counters,
    sort_rows,
)
from orchestrator.disk.rows.dataset import open_recorded
from orchestrator.disk.rows.valid_rows import (
    LEADING_COLUMNS,
    make_superseded_cost_filter,
    open_valid_rows,
)
from orchestrator.errors import UsageError
from orchestrator.storage import Storage
from orchestrator.tables.conditions import check_columns
from orchestrator.tables.query import read_matching_rows

_COST_KEY = ["rank", "hook", "event"]
"""Key columns of the table of hook costs."""
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
        read = source.batches(needed)
    else:
        read = read_matching_rows(source, needed, where)

    batches = []
    size = 0
    count = 0
    for batch in read:
        batches.append(batch)
        size += batch.nbytes
        count += len(batch)
        _check_memory(storage, count, size, _SORT_MEMORY_FACTOR)

    schema = pa.schema([source.schema.field(name) for name in needed])
    table = pa.Table.from_batches(batches) if batches else schema.empty_table()
    return to_frame(sort_rows(narrow_counters(conform_to(table, schema))).select(selected))


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


def to_frame(rows: pa.Table) -> pd.DataFrame:
    """Return a table as a frame, and leave it empty. Integers that floats would round stay
    integers."""
    categories = [name for name in NAME_COLUMNS if name in rows.column_names]
    rounded = [name for name in rows.column_names if _is_rounded_by_pandas(rows[name])]
    exact = {name: _to_nullable(rows[name]) for name in rounded}
    frame = cast(pd.DataFrame, rows.to_pandas(categories=categories, self_destruct=True))
    for name, column in exact.items():
        frame[name] = column
    return frame


def concat_exactly(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables, with nullable integers or Decimal objects where the floats that pandas
    chooses would round integers."""
    joined = pd.concat(tables, ignore_index=True)
    rounded: dict[Any, None] = {}
    for table in tables:
        for name, column in table.items():
            if joined[name].dtype.kind == "f" and _has_large_integers(column):
                rounded[name] = None

    for name in rounded:
        with suppress(TypeError, ValueError, OverflowError):  # other tables have fractions
            joined[name] = _concat_integers(tables, name)
    return joined


def _has_large_integers(column: "pd.Series[Any]") -> bool:
    """Return whether a column has integers that floats would round."""
    if not pd.api.types.is_integer_dtype(column.dtype):
        return False
    return bool(column.max() > 2**53 or column.min() < -(2**53))


def _concat_integers(tables: Sequence[pd.DataFrame], name: Any) -> "pd.Series[Any]":
    """Concatenate a column of whole numbers; decimals are the only type that holds negative ones
    beside those from 2^63 on."""
    columns = [
        table[name] if name in table else pd.Series(pd.NA, table.index, dtype="Int64")
        for table in tables
    ]
    limits: list[int] = []
    for column in columns:
        known = column.dropna()
        limits += map(int, [known.min(), known.max()] if len(known) else [])
    if max(limits) < 2**63:
        columns = [column.astype("Int64") for column in columns]
    elif min(limits) >= 0:
        columns = [column.astype("UInt64") for column in columns]
    else:
        columns = [_make_decimals(column) for column in columns]
    joined: pd.Series[Any] = pd.concat(columns, ignore_index=True)
    return joined


def _make_decimals(column: "pd.Series[Any]") -> "pd.Series[Any]":
    kind: Literal["UInt64", "Int64"] = "UInt64" if column.dtype.kind == "u" else "Int64"
    return column.astype(kind).astype(object).map(Decimal, na_action="ignore")


def _is_rounded_by_pandas(column: pa.ChunkedArray) -> bool:
    """Return whether pandas' floats, which a column of integers with gaps becomes, would round its
    values."""
    if not column.null_count or not pa.types.is_integer(column.type):
        return False
    limits = pc.min_max(column).as_py()
    return limits["max"] is not None and (limits["max"] > 2**53 or limits["min"] < -(2**53))


def _to_nullable(column: pa.ChunkedArray) -> pd.Series:
    """Return a column of integers as pandas' nullable integers."""
    return cast(
        pd.Series,
        column.to_pandas(
            types_mapper={pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype()}.get
        ),
    )


def load_costs(storage: Storage, attempts: Sequence[Attempt]) -> pd.DataFrame:
    """Return the calls and seconds of each hook at each event on each rank. `storage` is the run's
    folder."""
    source = open_recorded(storage, "costs")
    names = [*_COST_KEY, "attempt", "iteration", "stage", "calls", "seconds"]
    batches = source.batches(names) if source.schema.names else ()
    return sum_costs(
        (narrow_counters(pa.Table.from_batches([batch])) for batch in batches), attempts
    )


def sum_costs(costs: Iterable[pa.Table], attempts: Sequence[Attempt]) -> pd.DataFrame:
    """Sum the hook costs, leaving out superseded rows."""
    is_valid = ~make_superseded_cost_filter(attempts)
    sums = [_sum(table.filter(is_valid)) for table in costs if len(table)]
    if not sums:
        return pd.DataFrame(columns=[*_COST_KEY, "calls", "seconds"])
    total: pd.DataFrame = _sum(pa.concat_tables(sums)).to_pandas()
    return total.sort_values(_COST_KEY, ignore_index=True)


def _sum(costs: pa.Table) -> pa.Table:
    sums = costs.group_by(_COST_KEY).aggregate([("calls", "sum"), ("seconds", "sum")])
    return sums.select([*_COST_KEY, "calls_sum", "seconds_sum"]).rename_columns(
        [*_COST_KEY, "calls", "seconds"]
    )
