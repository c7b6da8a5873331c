"""The rows that the ranks of a run recorded, as a dataset of pyarrow's: only what a question needs is read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast
from weakref import finalize

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from orchestrator.errors import DamagedFile, UsageError
from orchestrator.stats.read.recorded_files import (
    ADVICE,
    RecordedFile,
    RecordedFiles,
    list_recorded_files,
    open_parquet,
)
from orchestrator.stats.write.checksums import read_stream, read_stream_start
from orchestrator.storage import Storage

COUNTER_TYPES = {
    "rank": pa.int32(),
    "epoch": pa.int32(),
    "iteration": pa.int32(),
    "step": pa.int32(),
    "batch_size": pa.int32(),
    "attempt": pa.int16(),
}
"""Types of the counters; other integers have 64 bits."""
PARTITIONS = pa.schema([("rank", COUNTER_TYPES["rank"]), ("attempt", COUNTER_TYPES["attempt"])])
"""Hive partition columns: stored only in a segment's path, as DuckDB, polars, Spark and pandas expect."""
MAX_ROWS_IN_MEMORY = 2**20
"""Maximum number of rows from Arrow streams to keep in memory; beyond it, they go to a temporary file."""
_RANKS_PER_READ = 16
"""Ranks whose Arrow streams are read together."""
_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)
_TEMPORARY = "hookyard-query-"


@dataclass(frozen=True)
class Source:
    """A dataset, and a pyarrow filter for its rows; None keeps all rows."""

    data: ds.Dataset
    condition: Any = None

    @property
    def schema(self) -> pa.Schema:
        schema: pa.Schema = self.data.schema
        return schema

    @property
    def has_rows(self) -> bool:
        """False if nothing was recorded; no column has a type then."""
        return any(not pa.types.is_null(field.type) for field in self.schema)

    @property
    def rows(self) -> ds.Dataset:
        return self.data if self.condition is None else self.data.filter(self.condition)

    def batches(self, columns: Sequence[str] | None = None, where: Any = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that also match `where`, batch by batch. Raises DamagedFile."""
        with self.raising_damaged_file():
            yield from self.rows.to_batches(columns=columns, filter=where)

    def read(self) -> pa.Table:
        """Return the rows as a table. Raises DamagedFile."""
        with self.raising_damaged_file():
            return self.rows.to_table()

    @contextmanager
    def raising_damaged_file(self) -> Iterator[None]:
        """Turn an error that a damaged file caused into a DamagedFile."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            for fragment in self.data.get_fragments():
                try:
                    for _ in fragment.to_batches():
                        pass
                except FileNotFoundError:
                    raise
                except (pa.ArrowException, OSError) as reason:
                    raise DamagedFile(fragment.path, str(reason), ADVICE) from error
            raise


def open_recorded(storage: Storage, table: str = "rows") -> Source:
    """Return everything that a run recorded in a table (`rows` or `costs`), including superseded rows.

    `storage` is the run's folder. The source has no columns if nothing was recorded.
    """
    files = list_recorded_files(storage, table)
    return make_source(storage, files, read_schema(storage, files)[0])


def make_source(storage: Storage, files: RecordedFiles, schema: pa.Schema, more: Iterable[pa.Table] = ()) -> Source:
    """Return the rows of some files, and `more`, in the columns of `schema`."""
    if not schema.names:
        return Source(ds.dataset(pa.table({})))
    tails, folder = _make_datasets(chain(_read_open_parts(storage, files), more), schema)
    data = ds.dataset([_parquet_dataset(storage, files, schema), *tails])
    if folder:
        finalize(data, shutil.rmtree, folder, ignore_errors=True)
    return Source(data)


def _parquet_dataset(storage: Storage, files: RecordedFiles, schema: pa.Schema) -> ds.Dataset:
    system = storage.filesystem or LocalFileSystem()
    fragments = [_FORMAT.make_fragment(f"{storage.root}/{files.joined}", system)] if files.joined else []
    for segment in files.segments:
        is_rank = ds.field("rank") == pa.scalar(segment.rank, schema.field("rank").type)
        is_attempt = ds.field("attempt") == pa.scalar(segment.attempt, schema.field("attempt").type)
        fragments.append(_FORMAT.make_fragment(f"{storage.root}/{segment.path}", system, is_rank & is_attempt))
    return ds.FileSystemDataset(fragments, schema, _FORMAT, system)


def _read_open_parts(storage: Storage, files: RecordedFiles) -> Iterator[pa.Table]:
    tails = files.parts_by_rank
    for first in range(0, len(tails), _RANKS_PER_READ):
        yield from storage.map(lambda parts: read_parts(storage, parts), tails[first : first + _RANKS_PER_READ])


def _make_datasets(tables: Iterable[pa.Table], schema: pa.Schema) -> tuple[list[ds.Dataset], str | None]:
    """Return the tables as datasets, and the temporary folder that holds them if they are too long for memory."""
    tables = (conform_to(table, schema) for table in tables)
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(map(len, held)) > MAX_ROWS_IN_MEMORY:
            folder = temporary_folder()
            with pq.ParquetWriter(f"{folder}/rows.parquet", schema, compression="zstd") as file:
                for some in chain(held, tables):
                    file.write_table(some)
            return [ds.dataset(f"{folder}/rows.parquet", schema, format="parquet")], folder
    return ([ds.dataset(pa.concat_tables(held))] if held else []), None


def temporary_folder() -> str:
    """Make a folder for rows that do not fit in memory, and remove folders left behind by dead processes."""
    for left in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*-*"):
        pid = left.name.removeprefix(_TEMPORARY).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_TEMPORARY}{os.getpid()}-")


def read_row_schema(storage: Storage) -> pa.Schema:
    """Return the schema of a run's rows: every column that any rank recorded."""
    return read_schema(storage, list_recorded_files(storage, "rows"))[0]


def read_schema(storage: Storage, files: RecordedFiles) -> tuple[pa.Schema, int]:
    """Return the schema of some files, and the number of rows in the Parquet files."""

    def parquet(path: str) -> tuple[pa.Schema, int]:
        with open_parquet(storage, path) as file:
            metadata = pq.read_metadata(file)
            return metadata.schema.to_arrow_schema().remove_metadata(), metadata.num_rows

    def part(file: RecordedFile) -> pa.Schema:
        try:
            with storage.open(file.path) as stream:
                return read_stream_start(stream, str(storage / file.path))[0] or pa.schema([])
        except FileNotFoundError:
            return read_schema(storage, _find_current_files(storage, file))[0]

    paths = [*([files.joined] if files.joined else []), *(segment.path for segment in files.segments)]
    footers = storage.map(parquet, paths)
    schemas = [
        PARTITIONS if files.segments else pa.schema([]),
        *(schema for schema, _ in footers),
        *storage.map(part, files.parts),
    ]
    schema = pa.unify_schemas(list(dict.fromkeys(schemas)), promote_options="permissive")
    return pa.schema([field for field in schema if field.name != "superseded"]), sum(rows for _, rows in footers)


def read_segment(storage: Storage, segment: RecordedFile) -> pa.Table:
    """Return the rows of a segment, including the partition columns from its path. Raises DamagedFile."""
    with open_parquet(storage, segment.path, prefetch=True) as file:
        rows = pq.read_table(file, page_checksum_verification=True).replace_schema_metadata()
    rows = rows.drop_columns([name for name in rows.column_names if name == "superseded"])
    for name, value in (("attempt", segment.attempt), ("rank", segment.rank)):
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, PARTITIONS.field(name).type), len(rows)))
    return rows


def read_parts(storage: Storage, parts: Sequence[RecordedFile]) -> pa.Table:
    """Return the rows of some parts of one rank, even if they become a segment in the meantime.

    Raises FileNotFoundError if they have been joined with those of other ranks.
    """
    tables = []
    try:
        for part in parts:
            batches = read_stream(storage.read(part.path), str(storage / part.path)).batches
            tables += [_join(batches)] if batches else []
    except FileNotFoundError:
        now = _find_current_files(storage, parts[0])
        if not (now.segments or now.parts):
            raise
        tables = [read_segment(storage, segment) for segment in now.segments]
        tables += [read_parts(storage, now.parts)] if now.parts else []
    return pa.concat_tables([pa.table({}), *tables], promote_options="permissive")


def _find_current_files(storage: Storage, part: RecordedFile) -> RecordedFiles:
    """Return the files that hold a part that no longer exists, and what its rank recorded after it."""
    table = part.path.rpartition("/")[2].partition("-")[0]
    now = list_recorded_files(storage, table, part.folder)
    segments, parts = ([file for file in files if file.number >= part.number] for files in (now.segments, now.parts))
    return RecordedFiles(None, segments, parts, [])


def _join(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Concatenate small batches; this frees the memory overhead of each batch."""
    table = pa.Table.from_batches(batches)
    return pa.table([_combine_chunks(column) for column in table.columns], schema=table.schema)


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    # NumPy joins many small pieces several times faster than Arrow does, but has no nulls.
    is_plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return (
        pa.array(column.to_numpy()) if is_plain and not column.null_count else cast(pa.Array, column.combine_chunks())
    )


def conform_to(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table cast to a schema; missing columns are null."""
    columns = [
        pa.nulls(len(table), field.type)
        if field.name not in table.column_names or pa.types.is_null(field.type)
        else table[field.name].cast(field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def narrow_counters(rows: pa.Table) -> pa.Table:
    """Return the rows with their counters in the types of COUNTER_TYPES, if they fit."""
    for index, name in enumerate(rows.column_names):
        if name in COUNTER_TYPES and pa.types.is_int64(rows[name].type):
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(index, name, rows[name].cast(COUNTER_TYPES[name]))
    return rows
