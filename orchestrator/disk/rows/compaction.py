"""Compaction: many files of rows become one Parquet file.

A rank compacts its own files while it writes. When all ranks of a run have ended, the driver
compacts the rest: into one file for all ranks if there are few rows, because reading and storing
one file is faster, otherwise into a file for each rank.
"""

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.columns import narrow_counters, sort_rows
from orchestrator.disk.rows.file_format import write_parquet
from orchestrator.disk.rows.file_rows import PARTITIONS, read_parquet, read_parts, read_schemas
from orchestrator.disk.rows.reader import make_source
from orchestrator.disk.rows.recorded_files import (
    COMPACTED,
    TABLES,
    RecordedFile,
    RecordedFiles,
    TableName,
    list_recorded_files,
)
from orchestrator.disk.rows.valid_rows import FILTER_COLUMNS, make_superseded_filter
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import make_lease
from orchestrator.disk.statuses import COMPLETE
from orchestrator.storage import Storage

_log = logging.getLogger("hookyard")

JOINED_ROWS = 2**20
"""A run of at most this many rows becomes one file; a longer one keeps files for each rank."""


def compact_parts(
    storage: Storage, parts: Sequence[RecordedFile], attempts: Sequence[Attempt] = ()
) -> None:
    """Rewrite closed parts of one rank as Parquet, and delete them. `attempts` determine which rows
    are superseded.

    After a kill in between, readers use the new file. Repeating the call gives the same file.
    """
    rows = read_parts(storage, parts)
    if len(rows):
        path = parts[-1].path.replace(".arrow", ".parquet")
        _write(storage, path, _mark_superseded(rows, attempts))
    storage.map(storage.delete, [part.path for part in parts])


def compact(storage: Storage, attempts: Sequence[Attempt]) -> None:
    """Compact the rows and the costs of a run. The driver calls it after all ranks have ended.

    Superseded rows stay, marked as such. After a kill at any moment, `list_recorded_files` still
    finds every row once. Rows come last: `is_compacted` looks only at them.
    """
    obsolete: list[str] = []
    folders_in_use: set[str] = set()
    for table in reversed(TABLES):
        files = list_recorded_files(storage, table)
        own_files = [*files.segments, *files.parts]
        obsolete += files.obsolete
        if own_files and _join(storage, table, files, attempts):
            obsolete += [file.path for file in own_files]
            continue
        if table == "rows":
            _update_superseded(storage, files.segments, attempts)
        storage.map(lambda parts: compact_parts(storage, parts, attempts), files.parts_by_rank)
        folders_in_use |= {file.folder for file in own_files}

    if storage.local is None:
        # Deleting a folder takes fewer requests, and leaves no marker of an empty folder.
        folders = {path: path.rpartition("/")[0] for path in obsolete}
        obsolete = [
            path if folder in folders_in_use else folder for path, folder in folders.items()
        ]
    storage.map(storage.delete, sorted(set(obsolete)))


def _join(
    storage: Storage, table: TableName, files: RecordedFiles, attempts: Sequence[Attempt]
) -> bool:
    """Write the table as one file if it has few rows, and return whether it has."""
    from orchestrator.disk.rows.usage import add_usage  # imports pandas, which ranks do not need

    schemas = read_schemas(storage, files)
    if schemas.parquet_rows > JOINED_ROWS and not files.joined:
        return False
    source = make_source(storage, files, schemas)
    if source.count_rows() > JOINED_ROWS and not files.joined:
        return False

    rows = narrow_counters(source.read())
    if len(rows):
        rows = _mark_superseded(sort_rows(rows), attempts)
        if table == "rows":
            rows = add_usage(rows, attempts)
    _write(storage, COMPACTED[table], rows)
    return True


def _update_superseded(
    storage: Storage, files: Sequence[RecordedFile], attempts: Sequence[Attempt]
) -> None:
    """Rewrite the files in which a later attempt has superseded rows."""
    newest = max((attempt.number for attempt in attempts), default=0)

    def update(file: RecordedFile) -> None:
        columns = read_parquet(storage, file.path, FILTER_COLUMNS)
        if pc.any(_mark_superseded(columns, attempts)["superseded"]).as_py():
            rows = read_parquet(storage, file.path)
            _write(storage, file.path, _mark_superseded(rows, attempts))

    storage.map(update, [file for file in files if file.attempt < newest])


def _mark_superseded(rows: pa.Table, attempts: Sequence[Attempt]) -> pa.Table:
    """Add the column `superseded` to rows, for other readers of the files; hook costs have none."""
    rows = narrow_counters(rows)
    if "phase" not in rows.column_names:
        return rows
    columns = {name: pc.field(name) for name in rows.column_names}
    columns["superseded"] = make_superseded_filter(attempts, rows.column_names)
    return dataset(rows).to_table(columns=columns)


def _write(storage: Storage, path: str, rows: pa.Table) -> None:
    """Write rows as Parquet. The path of a rank's file has the columns of PARTITIONS."""
    if path not in COMPACTED.values():
        rows = rows.drop_columns([name for name in PARTITIONS.names if name in rows.column_names])
    with storage.create(path) as file:
        write_parquet(rows, file)


def is_compacted(storage: Storage) -> bool:
    files = list_recorded_files(storage, "rows")
    return not (files.parts or files.obsolete)


def compact_rows(folder: RunFolder) -> bool:
    """Compact the rows of a run that has just ended, in its driver, and return whether that
    succeeded. A failure is only logged: readers are slower without it."""
    try:
        compact(folder.storage, folder.read_attempts())
    # Readers use the files of the ranks as they are, so this must not fail a run that has ended.
    except Exception as error:
        _log.warning(
            "could not compact the rows of %s, which stay as its ranks wrote them: %s",
            folder,
            error,
        )
        return False
    return True


def finish_compaction(folder: RunFolder) -> None:
    """Compact the rows of a run that has ended, if a kill or a failure prevented that. Readers call
    this, under the lease of the run's driver."""
    if is_compacted(folder.storage) or folder.read_metadata().status not in COMPLETE:
        return
    try:
        with make_lease(folder):
            compact(folder.storage, folder.read_attempts())
    # Without permission or memory, or while another reader does it, readers use the files as they are.
    except Exception as error:
        _log.debug("the rows of %s stay as its ranks wrote them: %s", folder, error)
