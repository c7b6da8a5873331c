"""Columns of rows: what those are that every row has, one type for each column, although files may
have different types, and the order of rows."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hooks.metrics.names import sort_phases
from orchestrator.errors import UsageError

ROW_KEY = ("rank", "phase", "epoch", "iteration")
"""Columns that identify a valid row of a run."""
COUNTER_TYPES = {
    "rank": pa.int32(),
    "epoch": pa.int32(),
    "iteration": pa.int32(),
    "step": pa.int32(),
    "samples": pa.int64(),
    "batch_size": pa.int32(),
    "attempt": pa.int16(),
}
"""Integer columns that are not measurements, with their types; other integers have 64 bits."""
NAME_COLUMNS = ("node", "phase", "trial")
"""Text columns that say where a row is from, categories in pandas; `trial` is only in tables of a
sweep."""
_ORDER = ["phase", "epoch", "iteration", "rank", "attempt"]


def check_case(names: Iterable[str]) -> None:
    """Raise UsageError if two columns differ only in case, because SQL ignores it."""
    known: dict[str, str] = {}
    for name in names:
        if known.setdefault(name.lower(), name) != name:
            raise UsageError(
                f"columns '{known[name.lower()]}' and '{name}' differ only in case, which SQL ignores; rename one"
            )


def merge_types(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return the type for values of two types: a float for integers and floats, otherwise text.

    Signed integers and unsigned ones of 64 bits become decimals, the only type that holds both.
    """
    if first == second:
        return first
    kinds = (first, second)
    if pa.uint64() in kinds and any(map(pa.types.is_signed_integer, kinds)):
        return pa.decimal128(20)
    try:
        schemas = [pa.schema([("", kind)]) for kind in (first, second)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return pa.string()


def merge_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return all columns of some schemas, each with one type."""
    types: dict[str, pa.DataType] = {}
    for schema in dict.fromkeys(schemas):
        for field in schema:
            types[field.name] = merge_types(types.get(field.name, field.type), field.type)
    return pa.schema([*types.items()])


def conform_to(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table cast to a schema; missing columns are null. Integers beyond 2^53 are rounded
    to floats."""
    if table.schema == schema:
        return table
    columns = []
    for field in schema:
        if field.name not in table.column_names or pa.types.is_null(field.type):
            columns.append(pa.nulls(len(table), field.type))
        else:
            columns.append(table[field.name].cast(field.type, safe=False))
    return pa.table(columns, schema=schema)


def concat_rows(tables: Sequence[pa.Table]) -> pa.Table:
    schema = merge_schemas(table.schema for table in tables)
    return pa.concat_tables(
        [schema.empty_table(), *(conform_to(table, schema) for table in tables)]
    )


def narrow_counters(rows: pa.Table) -> pa.Table:
    """Return the rows with their counters in the types of COUNTER_TYPES, if they fit."""
    for index, name in enumerate(rows.column_names):
        if name in COUNTER_TYPES and pa.types.is_int64(rows[name].type):
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(index, name, rows[name].cast(COUNTER_TYPES[name]))
    return rows


def sort_rows(rows: pa.Table) -> pa.Table:
    """Sort rows by phase (in the order they run), epoch, iteration, rank and attempt."""
    rows = rows.combine_chunks()
    keys = {name: rows[name] for name in _ORDER if name in rows.column_names}
    if "phase" in keys:
        phases = pa.array(sort_phases(pc.unique(keys["phase"]).to_pylist()), pa.string())
        keys["phase"] = pc.index_in(keys["phase"], value_set=phases)
    order = np.lexsort([key.to_numpy() for key in reversed(keys.values())])
    return rows.take(order) if (order[1:] < order[:-1]).any() else rows
