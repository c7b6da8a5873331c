"""The rows that the ranks of a run recorded, as a dataset of pyarrow's: only what a question needs
is read."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from hooks.metrics.names import sort_phases
from orchestrator.disk.rows.columns import COUNTER_TYPES, concat_rows, conform_to, merge_schemas
from orchestrator.disk.rows.file_format import read_schema, read_stream
from orchestrator.disk.rows.recorded_files import (
    ADVICE,
    RecordedFile,
    RecordedFiles,
    list_recorded_files,
    open_parquet,
    parse_recorded_path,
)
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.storage import Storage

PARTITIONS = pa.schema([("rank", COUNTER_TYPES["rank"]), ("attempt", COUNTER_TYPES["attempt"])])
"""Hive partition columns: stored only in a segment's path, as DuckDB, polars, Spark and pandas
expect."""
MAX_ROWS_IN_MEMORY = 2**20
"""Maximum number of rows from Arrow streams to keep in memory; beyond it, they go to a temporary
file."""
_RANKS_PER_READ = 16
"""Ranks whose Arrow streams are read together."""
_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)
_TEMPORARY = "hookyard-query-"
_ORDER = ["phase", "epoch", "iteration", "rank", "attempt"]


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

    def count_rows(self) -> int:
        """Return the number of rows. Raises DamagedFile."""
        with self.raising_damaged_file():
            return int(self.rows.count_rows())

    def batches(
        self, columns: Sequence[str] | None = None, where: Any = None
    ) -> Iterator[pa.RecordBatch]:
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
        # pyarrow and DuckDB raise different errors for a damaged file, and do not name the file.
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
    """Return everything that a run recorded in a table (`rows` or `costs`), including superseded
    rows.

    `storage` is the run's folder. The source has no columns if nothing was recorded.
    """
    files = list_recorded_files(storage, table)
    return make_source(storage, files, read_schemas(storage, files))


def make_source(
    storage: Storage, files: RecordedFiles, schemas: "Schemas", more: Iterable[pa.Table] = ()
) -> Source:
    """Return the rows of some files, and `more`, in the columns of `schemas.merged`."""
    schema = schemas.merged
    if not schema.names:
        return Source(ds.dataset(pa.table({})))
    changed = {
        path for path, own in schemas.parquet.items() if not _can_cast(storage, path, own, schema)
    }
    changed_rows = (read_parquet(storage, path) for path in changed)
    tables = chain(changed_rows, _read_open_parts(storage, files), more)
    tails, folder = _make_datasets(tables, schema)

    joined = None if files.joined in changed else files.joined
    segments = [segment for segment in files.segments if segment.path not in changed]
    parquet = _parquet_dataset(storage, replace(files, joined=joined, segments=segments), schema)
    data = ds.dataset([parquet, *tails])
    if folder:
        finalize(data, shutil.rmtree, folder, ignore_errors=True)
    return Source(data)


def _can_cast(storage: Storage, path: str, own: pa.Schema, merged: pa.Schema) -> bool:
    """Return whether a dataset casts a file's columns. It refuses text, and floats of integers
    beyond 2^53."""
    types = {
        field.name: merged.field(field.name).type
        for field in own
        if not pa.types.is_null(field.type)
    }
    changed = [
        name
        for name, new in types.items()
        if own.field(name).type != new and not pa.types.is_integer(new)
    ]
    if not changed or not all(pa.types.is_floating(types[name]) for name in changed):
        return not changed
    system = storage.filesystem or LocalFileSystem()
    fragment = _FORMAT.make_fragment(f"{storage.root}/{path}", system)
    for group in fragment.row_groups:
        for name in changed:
            limits = group.statistics.get(name)
            if not limits or limits["min"] < -(2**53) or limits["max"] > 2**53:
                return False
    return True


def _parquet_dataset(storage: Storage, files: RecordedFiles, schema: pa.Schema) -> ds.Dataset:
    system = storage.filesystem or LocalFileSystem()
    fragments = []
    if files.joined:
        fragments.append(_FORMAT.make_fragment(f"{storage.root}/{files.joined}", system))
    for segment in files.segments:
        is_rank = ds.field("rank") == pa.scalar(segment.rank, schema.field("rank").type)
        is_attempt = ds.field("attempt") == pa.scalar(segment.attempt, schema.field("attempt").type)
        fragments.append(
            _FORMAT.make_fragment(f"{storage.root}/{segment.path}", system, is_rank & is_attempt)
        )
    return ds.FileSystemDataset(fragments, schema, _FORMAT, system)


def _read_open_parts(storage: Storage, files: RecordedFiles) -> Iterator[pa.Table]:
    tails = files.parts_by_rank
    for first in range(0, len(tails), _RANKS_PER_READ):
        some_ranks = tails[first : first + _RANKS_PER_READ]
        yield from storage.map(lambda parts: read_parts(storage, parts), some_ranks)


def _make_datasets(
    tables: Iterable[pa.Table], schema: pa.Schema
) -> tuple[list[ds.Dataset], str | None]:
    """Return the tables as datasets, and the temporary folder that holds them if they are too long
    for memory."""
    conforming = (conform_to(table, schema) for table in tables)
    kept: list[pa.Table] = []
    for table in conforming:
        kept.append(table)
        if sum(map(len, kept)) > MAX_ROWS_IN_MEMORY:
            folder = temporary_folder()
            path = f"{folder}/rows.parquet"
            with pq.ParquetWriter(path, schema, compression="zstd") as file:
                for next_table in chain(kept, conforming):
                    file.write_table(next_table)
            return [ds.dataset(path, schema, format="parquet")], folder
    if not kept:
        return [], None
    return [ds.dataset(pa.concat_tables(kept))], None


def temporary_folder() -> str:
    """Make a folder for rows that do not fit in memory, and remove folders left behind by dead
    processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*-*"):
        pid = folder.name.removeprefix(_TEMPORARY).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_TEMPORARY}{os.getpid()}-")


def read_row_schema(storage: Storage) -> pa.Schema:
    """Return the schema of a run's rows."""
    return read_schemas(storage, list_recorded_files(storage, "rows")).merged


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


def sort_rows(rows: pa.Table) -> pa.Table:
    """Sort rows by phase (in the order they run), epoch, iteration, rank and attempt."""
    rows = rows.combine_chunks()
    keys = {name: rows[name] for name in _ORDER if name in rows.column_names}
    if "phase" in keys:
        phases = pa.array(sort_phases(pc.unique(keys["phase"]).to_pylist()), pa.string())
        keys["phase"] = pc.index_in(keys["phase"], value_set=phases)
    order = np.lexsort([key.to_numpy() for key in reversed(keys.values())])
    return rows.take(order) if (order[1:] < order[:-1]).any() else rows
