"""Columns whose values have several types, such as 0.1 and "auto": JSON in the index, and numbers or
text in tables."""

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import pyarrow as pa

MIXED = pa.binary()
"""Type of a column whose values have several types, or more than 64 bits: each value as JSON."""
_LARGE_INTEGERS = (pa.uint64(), pa.decimal128(38))
"""Types of a column of integers that 64 bits with a sign do not hold."""


def make_column(values: Sequence[Any]) -> pa.Array:
    """Return values of one type as a column, and those of several types as JSON."""
    if len({type(value) for value in values if value is not None}) < 2:
        with suppress(pa.ArrowException, OverflowError):  # an integer of more than 64 bits
            return pa.array(values)
    texts = [None if value is None else json.dumps(value).encode() for value in values]
    return pa.array(texts, MIXED)


def concat_columns(parts: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Return the values of columns of any types, of the type that `make_column` would give them."""
    kinds = {part.type for part in parts if part.null_count < len(part)}
    if kinds == {MIXED} or len(kinds) > 1:
        return make_column([*chain.from_iterable(map(_list_values, parts))])
    kind = next(iter(kinds), parts[0].type)
    chunks = chain.from_iterable(part.chunks for part in parts)
    return pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)


def unify_mixed_columns(table: pa.Table) -> pa.Table:
    """Return the table with numbers or text instead of JSON."""
    columns = {
        name: _unify(table[name]) if table[name].type == MIXED else table[name]
        for name in table.column_names
    }
    return pa.table(columns)


def _unify(column: pa.ChunkedArray) -> pa.Array:
    """Return the values of several types as numbers if all are, otherwise as text."""
    values = _list_values(column)
    known = [value for value in values if value is not None]
    if all(type(value) is int for value in known):
        for kind in _LARGE_INTEGERS:
            with suppress(pa.ArrowException, OverflowError):
                return pa.array(values, kind)
    if all(type(value) in (int, float) for value in known):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([_format_as_text(value) for value in values], pa.string())


def _format_as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _list_values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if column.type != MIXED:
        return values
    return [None if value is None else json.loads(value) for value in values]
