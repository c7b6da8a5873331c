"""The rows of a run as a dataset of pyarrow's, of which no more is read than is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from itertools import chain
from weakref import finalize

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from orchestrator.records.metadata import Attempt
from orchestrator.stats.read.query import Source, temporary_folder
from orchestrator.stats.read.reading import as_schema, described, read_tail
from orchestrator.stats.read.recorded_files import RecordedFiles, recorded_files
from orchestrator.stats.read.row_filter import Condition, joint_condition, parse_where
from orchestrator.stats.read.shared_training import shared_schema, shared_tables
from orchestrator.stats.read.superseded import superseded
from orchestrator.stats.read.tables import FIRST
from orchestrator.storage import Storage

IN_MEMORY = 2**20
"""So many rows that ranks have not written as Parquet yet are kept in memory; more go to a temporary file."""
_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


def recorded_rows(storage: Storage, attempts: Sequence[Attempt], where: str | None = None) -> Source:
    """The rows that count and meet a condition, each once and in no order; `storage` is the run's folder.

    `where` is as `parse_where` takes it. Raises UsageError for a condition that cannot be read.
    """
    files = recorded_files(storage, "rows")
    own, _ = described(storage, files)
    schema = pa.unify_schemas([own, shared_schema(storage, attempts)[0]], promote_options="permissive")
    conditions = parse_where(where, schema) if where else []
    if not schema.names:
        return Source(ds.dataset(pa.table({name: pa.nulls(0) for name in FIRST})))
    files = files.of(conditions)
    tails, folder = _tails(storage, files, schema, shared_tables(storage, attempts, schema))
    # A condition costs a copy of what is read.
    done_again = (
        [Condition(frozenset(), ~superseded(attempts, own.names))]
        if len(attempts) > 1 or any(attempt.until is not None for attempt in attempts)
        else []
    )
    source = Source(
        ds.dataset([_in_parquet(storage, files, schema), *tails]), joint_condition([*conditions, *done_again])
    )
    if folder:
        finalize(source, shutil.rmtree, folder, ignore_errors=True)
    return source


def _in_parquet(storage: Storage, files: RecordedFiles, schema: pa.Schema) -> ds.Dataset:
    system = storage.filesystem or LocalFileSystem()
    fragments = [_FORMAT.make_fragment(f"{storage.root}/{files.joined}", system)] if files.joined else []
    for segment in files.segments:
        of_rank = ds.field("rank") == pa.scalar(segment.rank, schema.field("rank").type)
        of_attempt = ds.field("attempt") == pa.scalar(segment.attempt, schema.field("attempt").type)
        fragments.append(_FORMAT.make_fragment(f"{storage.root}/{segment.path}", system, of_rank & of_attempt))
    return ds.FileSystemDataset(fragments, schema, _FORMAT, system)


def _tails(
    storage: Storage, files: RecordedFiles, schema: pa.Schema, shared: Iterable[pa.Table]
) -> tuple[list[ds.Dataset], str | None]:
    """What ranks that are alive, or were killed, have not written as Parquet, and what is `shared`; and the temporary
    folder it is in, if it is."""
    own = (read_tail(storage, parts) for parts in files.tails)
    tables = (as_schema(table, schema) for table in chain(own, shared))
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(map(len, held)) > IN_MEMORY:
            folder = temporary_folder()
            return [_spooled(chain(held, tables), schema, f"{folder}/rows.parquet")], folder
    return ([ds.dataset(pa.concat_tables(held))] if held else []), None


def _spooled(tables: Iterable[pa.Table], schema: pa.Schema, path: str) -> ds.Dataset:
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for table in tables:
            file.write_table(table)
    return ds.dataset(path, schema, format="parquet")
