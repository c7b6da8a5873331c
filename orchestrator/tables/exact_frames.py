"""DataFrames whose integers are exact, where the floats that pandas chooses would round them."""

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.disk.rows.columns import NAME_COLUMNS


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


def make_lists(arrays: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column of NumPy arrays, whose elements may be arrays, as lists."""
    return arrays.map(_make_list, na_action="ignore")


def _make_list(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind in "mM":  # `tolist` gives integers for nanoseconds
        moments = pd.Series(value)
        return moments.astype(object).where(moments.notna(), None).tolist()
    return [_make_list(element) for element in value.tolist()]


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
