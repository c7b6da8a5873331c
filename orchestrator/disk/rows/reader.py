"""The rows that the ranks of a run recorded, as a dataset of pyarrow's over all their files."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from weakref import finalize

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from orchestrator.disk.rows.columns import conform_to
from orchestrator.disk.rows.file_rows import Schemas, read_parquet, read_parts, read_schemas
from orchestrator.disk.rows.recorded_files import RecordedFiles, TableName, list_recorded_files
from orchestrator.disk.rows.source import Source
from orchestrator.disk.temporary_folder import temporary_folder
from orchestrator.storage import Storage

MAX_ROWS_IN_MEMORY = 2**20
"""Maximum number of rows from Arrow streams to keep in memory; beyond it, they go to a temporary
file."""
_RANKS_PER_READ = 16
"""Ranks whose Arrow streams are read together."""
_MAX_EXACT = 2**53
"""Largest integer up to which each has a float of its own."""
_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


def open_recorded(storage: Storage, table: TableName = "rows") -> Source:
    """Return everything that a run recorded in a table (`rows` or `costs`), including superseded
    rows.

    `storage` is the run's folder. The source has no columns if nothing was recorded.
    """
    files = list_recorded_files(storage, table)
    return make_source(storage, files, read_schemas(storage, files))


def make_source(
    storage: Storage, files: RecordedFiles, schemas: Schemas, more: Iterable[pa.Table] = ()
) -> Source:
    """Return the rows of some files, and `more`, in the columns of `schemas.merged`."""
    schema = schemas.merged
    if not schema.names:
        return Source(ds.dataset(pa.table({})))
    to_convert = {
        path for path, own in schemas.parquet.items() if not _can_cast(storage, path, own, schema)
    }
    converted = (read_parquet(storage, path) for path in to_convert)
    tables = chain(converted, _read_open_parts(storage, files), more)
    others, folder = _make_datasets(tables, schema)

    joined = None if files.joined in to_convert else files.joined
    segments = [segment for segment in files.segments if segment.path not in to_convert]
    parquet = _parquet_dataset(storage, replace(files, joined=joined, segments=segments), schema)
    data = ds.dataset([parquet, *others])
    if folder:
        finalize(data, shutil.rmtree, folder, ignore_errors=True)
    return Source(data)


def _can_cast(storage: Storage, path: str, own: pa.Schema, merged: pa.Schema) -> bool:
    """Return whether a dataset casts a file's columns. It refuses text, and floats of integers
    beyond 2^53."""
    new_floats = []
    for field in own:
        new_type = merged.field(field.name).type
        if field.type in (pa.null(), new_type) or pa.types.is_integer(new_type):
            continue
        if not pa.types.is_floating(new_type):
            return False
        new_floats.append(field.name)
    return _fit_into_floats(storage, path, new_floats)


def _fit_into_floats(storage: Storage, path: str, columns: Sequence[str]) -> bool:
    """Return whether all integers of a file's columns are exact as floats, by its statistics."""
    if not columns:
        return True
    system = storage.filesystem or LocalFileSystem()
    for group in _FORMAT.make_fragment(f"{storage.root}/{path}", system).row_groups:
        for column in columns:
            limits = group.statistics.get(column)
            if not limits or limits["min"] < -_MAX_EXACT or limits["max"] > _MAX_EXACT:
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
    count = 0
    for table in conforming:
        kept.append(table)
        count += len(table)
        if count > MAX_ROWS_IN_MEMORY:
            folder = temporary_folder()
            return [_write_dataset(folder, chain(kept, conforming), schema)], folder
    return [ds.dataset(pa.concat_tables(kept))] if kept else [], None


def _write_dataset(folder: str, tables: Iterable[pa.Table], schema: pa.Schema) -> ds.Dataset:
    path = f"{folder}/rows.parquet"
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for table in tables:
            file.write_table(table)
    return ds.dataset(path, schema, format="parquet")
