"""Rows and columns of the files that ranks recorded, even if a thread rewrites Arrow streams as
Parquet files while they are read."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from orchestrator.disk.rows.columns import COUNTER_TYPES, concat_rows, merge_schemas
from orchestrator.disk.rows.file_format import read_schema, read_stream
from orchestrator.disk.rows.recorded_files import (
    RecordedFile,
    RecordedFiles,
    list_recorded_files,
    open_parquet,
    parse_recorded_path,
)
from orchestrator.storage import Storage

PARTITIONS = pa.schema([("rank", COUNTER_TYPES["rank"]), ("attempt", COUNTER_TYPES["attempt"])])
"""Hive partition columns: stored only in a segment's path, as DuckDB, polars, Spark and pandas
expect."""


class Schemas(NamedTuple):
    """Columns of the files of a table."""

    merged: pa.Schema
    """Every column that any rank recorded."""
    parquet: Mapping[str, pa.Schema]
    """Columns of each Parquet file, by path."""
    parquet_rows: int
    """Number of rows in the Parquet files."""


def read_schemas(storage: Storage, files: RecordedFiles) -> Schemas:
    paths = [files.joined] if files.joined else []
    paths += [segment.path for segment in files.segments]
    footers = storage.map(lambda path: _read_footer(storage, path), paths)
    by_path = {path: schema for path, (schema, _) in zip(paths, footers, strict=True)}
    rows = sum(count for _, count in footers)

    of_parts = storage.map(lambda part: _read_part_schema(storage, part), files.parts)
    partitions = [PARTITIONS] if files.segments else []
    return Schemas(merge_schemas([*partitions, *by_path.values(), *of_parts]), by_path, rows)


def read_row_schema(storage: Storage) -> pa.Schema:
    """Return the schema of a run's rows."""
    return read_schemas(storage, list_recorded_files(storage, "rows")).merged


def _read_footer(storage: Storage, path: str) -> tuple[pa.Schema, int]:
    """Return the columns that a Parquet file stores for rows, and their number."""
    with open_parquet(storage, path) as parquet:
        stored = parquet.metadata.schema.to_arrow_schema()
        fields = [field for field in stored if field.name != "superseded"]
        return pa.schema(fields), parquet.metadata.num_rows


def _read_part_schema(storage: Storage, part: RecordedFile) -> pa.Schema:
    try:
        with storage.open(part.path) as stream:
            return read_schema(stream, str(storage / part.path)) or pa.schema([])
    except FileNotFoundError:
        return read_schemas(storage, _find_current_files(storage, part)).merged


def read_parquet(storage: Storage, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a Parquet file, with the partition columns from a segment's path. Raises
    DamagedFile."""
    with open_parquet(storage, path, prefetch=True) as parquet:
        rows = parquet.read(columns).replace_schema_metadata()
    if "superseded" in rows.column_names:
        rows = rows.drop_columns("superseded")
    segment = parse_recorded_path(path)
    if segment is None:
        return rows

    values = {"attempt": segment.attempt, "rank": segment.rank}
    for name, value in values.items():
        typed_value = pa.scalar(value, PARTITIONS.field(name).type)
        rows = rows.append_column(name, pa.repeat(typed_value, len(rows)))
    return rows


def read_parts(storage: Storage, parts: Sequence[RecordedFile]) -> pa.Table:
    """Return the rows of some parts of one rank, even if they become a segment in the meantime.

    Raises FileNotFoundError if they have been joined with those of other ranks.
    """
    tables = []
    try:
        for part in parts:
            batches = read_stream(storage.read(part.path), str(storage / part.path)).batches
            if batches:
                # Small batches take much more memory than their values.
                tables.append(pa.Table.from_batches(batches).combine_chunks())
    except FileNotFoundError:
        now = _find_current_files(storage, parts[0])
        if not (now.segments or now.parts):
            raise
        tables = [read_parquet(storage, segment.path) for segment in now.segments]
        if now.parts:
            tables.append(read_parts(storage, now.parts))
    return concat_rows(tables)


def _find_current_files(storage: Storage, part: RecordedFile) -> RecordedFiles:
    """Return the files that hold a part that no longer exists, and what its rank recorded after
    it."""
    now = list_recorded_files(storage, part.table, part.folder)
    segments = [segment for segment in now.segments if segment.number >= part.number]
    parts = [later for later in now.parts if later.number >= part.number]
    return RecordedFiles(None, segments, parts, [])
