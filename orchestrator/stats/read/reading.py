"""Reading what the ranks of a run recorded: a few files at a time, so that no more is in memory than what is asked
for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.stats.read.recorded_files import Recorded, RecordedFiles, opened_parquet, recorded_files
from orchestrator.stats.write.checksums import schema_in, whole_batches
from orchestrator.storage import Storage

SMALL = {
    "rank": pa.int32(),
    "epoch": pa.int32(),
    "iteration": pa.int32(),
    "step": pa.int32(),
    "batch_size": pa.int32(),
    "attempt": pa.int16(),
}
"""The integers of the columns that count; others are 64 bits wide."""
PARTITIONS = pa.schema([("rank", SMALL["rank"]), ("attempt", SMALL["attempt"])])
"""What the paths of segments hold, and not these themselves: so DuckDB, polars, Spark and pandas expect it."""
_AT_ONCE = 16
"""Files that are read together."""


def recorded_schema(storage: Storage) -> pa.Schema:
    """Every column of rows that any rank of a run recorded, and what it holds; empty where nothing is recorded."""
    return described(storage, recorded_files(storage, "rows"))[0]


def described(storage: Storage, files: RecordedFiles) -> tuple[pa.Schema, int]:
    """Every column that is in some files, and how many rows are in those that are Parquet."""

    def parquet(path: str) -> tuple[pa.Schema, int]:
        with opened_parquet(storage, path) as file:
            metadata = pq.read_metadata(file)
            return metadata.schema.to_arrow_schema().remove_metadata(), metadata.num_rows

    def part(one: Recorded) -> pa.Schema:
        try:
            with storage.open(one.path) as stream:
                begun = schema_in(stream, str(storage / one.path))
        except FileNotFoundError:
            return described(storage, _there_by_now(storage, one))[0]
        return begun[0] if begun else pa.schema([])

    told = storage.each(
        parquet, [*([files.joined] if files.joined else []), *(segment.path for segment in files.segments)]
    )
    schemas = [
        PARTITIONS if files.segments else pa.schema([]),
        *(schema for schema, _ in told),
        *storage.each(part, files.parts),
    ]
    schema = pa.unify_schemas(list(dict.fromkeys(schemas)), promote_options="permissive")
    return pa.schema([field for field in schema if field.name != "superseded"]), sum(rows for _, rows in told)


def read_batches(data: bytes, columns: Collection[str] | None = None, place: str = "a stream") -> list[pa.RecordBatch]:
    """The whole batches of an Arrow stream, named by its place; what a kill cut short at its end is left out, and what
    is damaged, which is said."""
    stream = pa.BufferReader(data)
    begun = schema_in(stream, place)
    if begun is None:
        return []
    batches: list[pa.RecordBatch] = []
    names = [name for name in begun[0].names if columns is None or name in columns]
    is_all = len(names) == len(begun[0].names)
    with suppress(pa.ArrowInvalid, EOFError, OSError):
        # Taken one by one: those before the cut are kept.
        for batch in whole_batches(stream, *begun, place):
            batches.append(batch if is_all else batch.select(names))
    return batches


def read_parquet(storage: Storage, path: str, schema: pa.Schema | None = None, where: Any = None) -> pa.Table:
    """The rows of a Parquet file of a run that meet an expression, all of them where there is none; the columns of
    `schema`, of which those that the file lacks are empty. Raises DamagedFile."""
    with opened_parquet(storage, path, at_once=path.startswith("stats/")) as file:
        names = None if schema is None else schema.names
        found = pq.read_table(file, columns=names, filters=where, schema=schema, page_checksum_verification=True)
        return found.replace_schema_metadata()


def read_segment(storage: Storage, segment: Recorded, schema: pa.Schema | None = None, where: Any = None) -> pa.Table:
    """As `read_parquet`, with the columns that the path of a segment holds."""
    held = {"attempt": segment.attempt, "rank": segment.rank}
    own = None if schema is None else pa.schema([field for field in schema if field.name not in held])
    rows = read_parquet(storage, segment.path, own, where)
    for name, value in held.items():
        if schema is None or name in schema.names:
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, PARTITIONS.field(name).type), len(rows)))
    return rows if schema is None else rows.select(schema.names)


def read_tail(storage: Storage, parts: Sequence[Recorded], columns: Collection[str] | None = None) -> pa.Table:
    """The rows of some parts of one rank, joined. Parts that have become a segment meanwhile are read from that; raises
    FileNotFoundError where they have been joined with those of other ranks."""
    tables = []
    try:
        for part in parts:
            batches = read_batches(storage.read(part.path), columns, str(storage / part.path))
            tables += [_joined(batches)] if batches else []
    except FileNotFoundError:
        now = _there_by_now(storage, parts[0])
        if not (now.segments or now.parts):
            raise
        schema = pa.schema([field for field in described(storage, now)[0] if columns is None or field.name in columns])
        tables = [read_segment(storage, segment, schema) for segment in now.segments]
        tables += [read_tail(storage, now.parts, columns)] if now.parts else []
    return pa.concat_tables([pa.table({}), *tables], promote_options="permissive")


def _there_by_now(storage: Storage, part: Recorded) -> RecordedFiles:
    """What the rank of a part that is gone has of it and of what came after."""
    table = part.path.rpartition("/")[2].partition("-")[0]
    now = recorded_files(storage, table, part.folder)
    segments, parts = ([file for file in files if file.number >= part.number] for files in (now.segments, now.parts))
    return RecordedFiles(None, segments, parts, [])


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Batches of a few rows each as one, without what each of them takes beside its rows."""
    table = pa.Table.from_batches(batches)
    return pa.table([_in_one_piece(column) for column in table.columns], schema=table.schema)


def _in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    # NumPy joins many small pieces several times faster than Arrow does, but knows no empty cells.
    is_plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return (
        pa.array(column.to_numpy()) if is_plain and not column.null_count else cast(pa.Array, column.combine_chunks())
    )


def read_recorded(storage: Storage, table: str) -> pa.Table:
    """Every row recorded for a run, those that were done again too; no column where nothing is recorded.

    `storage` is the run's folder, `table` is `rows` or `costs`.
    """
    files = recorded_files(storage, table)
    found = [pa.table({}), *recorded_tables(storage, files, described(storage, files)[0])]
    return pa.concat_tables(found, promote_options="permissive")


def recorded_tables(
    storage: Storage,
    files: RecordedFiles,
    schema: pa.Schema,
    keep: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    where: Any = None,
) -> Iterator[pa.Table]:
    """What `keep` leaves of the rows of each file, in the columns of `schema`, a few files at a time. `where` is an
    expression of columns that are in every file, which all rows that are kept meet: row groups that hold none such are
    not read."""

    def of_segment(segment: Recorded) -> pa.Table:
        return keep(narrow(read_segment(storage, segment, schema, where)))

    def of_tail(parts: Sequence[Recorded]) -> pa.Table:
        return keep(narrow(as_schema(read_tail(storage, parts, schema.names), schema)))

    if files.joined:
        yield keep(narrow(read_parquet(storage, files.joined, schema, where)))
    for first in range(0, len(files.segments), _AT_ONCE):
        yield from storage.each(of_segment, files.segments[first : first + _AT_ONCE])
    tails = files.tails
    for first in range(0, len(tails), _AT_ONCE):
        yield from storage.each(of_tail, tails[first : first + _AT_ONCE])


def as_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the columns of a schema; those that it lacks are empty."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def narrow(rows: pa.Table) -> pa.Table:
    """Counters as the integers of SMALL, where they fit."""
    for index, name in enumerate(rows.column_names):
        if name in SMALL and pa.types.is_int64(rows[name].type):
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(index, name, rows[name].cast(SMALL[name]))
    return rows
