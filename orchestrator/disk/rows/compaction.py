"""Compaction of an ended run's files."""

from collections.abc import Sequence
from contextlib import suppress

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import COMPLETE
from orchestrator.disk.rows.checksums import write_parquet
from orchestrator.disk.rows.columns import narrow_counters
from orchestrator.disk.rows.dataset import make_source, read_schemas, sort_rows
from orchestrator.disk.rows.recorded_files import (
    COMPACTED,
    RecordedFile,
    RecordedFiles,
    list_recorded_files,
)
from orchestrator.disk.rows.segments import (
    add_superseded_column,
    rewrite_as_segment,
    update_superseded_column,
)
from orchestrator.disk.rows.usage import add_usage
from orchestrator.disk.run_folder import RunFolder
from orchestrator.storage import Storage

JOINED_ROWS = 2**20
"""A run of at most this many rows becomes one file; a longer one keeps a file for each rank."""


def compact(storage: Storage, attempts: Sequence[Attempt]) -> None:
    """Write `stats.parquet` and `hooks.parquet`, or Parquet files of each rank for a long run.

    The driver calls it after all ranks have ended. Superseded rows stay, marked as such. After a
    kill at any moment, `list_recorded_files` still finds every row once. Rows come last:
    `is_compacted` looks only at them.
    """
    obsolete: list[str] = []
    kept_folders: set[str] = set()
    for table in ("costs", "rows"):
        files = list_recorded_files(storage, table)
        uncompacted = [*files.segments, *files.parts]
        obsolete += files.obsolete
        if uncompacted and _join(storage, table, files, attempts):
            obsolete += [file.path for file in uncompacted]
            continue
        kept_folders |= {file.folder for file in uncompacted}
        if table == "rows" and attempts:
            earlier_segments = [
                segment for segment in files.segments if segment.attempt < attempts[-1].number
            ]

            def mark_segment(segment: RecordedFile) -> None:
                update_superseded_column(
                    storage, segment.path, attempts, attempt=segment.attempt, rank=segment.rank
                )

            storage.map(mark_segment, earlier_segments)
            if files.joined:
                update_superseded_column(storage, files.joined, attempts)
        storage.map(lambda parts: rewrite_as_segment(storage, parts, attempts), files.parts_by_rank)
    if storage.local is None:  # deleting a folder takes fewer requests
        obsolete = [
            path if (folder := path.rpartition("/")[0]) in kept_folders else folder
            for path in obsolete
        ]
    storage.map(storage.delete, sorted(set(obsolete)))


def _join(storage: Storage, table: str, files: RecordedFiles, attempts: Sequence[Attempt]) -> bool:
    """Write the table as one file if it has few rows, and return whether it has."""
    schemas = read_schemas(storage, files)
    if schemas.parquet_rows > JOINED_ROWS:
        return False
    source = make_source(storage, files, schemas)
    if source.count_rows() > JOINED_ROWS:
        return False
    rows = narrow_counters(source.read())
    if len(rows):
        rows = sort_rows(rows)
        if table == "rows":
            rows = add_usage(add_superseded_column(rows, attempts), attempts)
        with storage.create(COMPACTED[table]) as file:
            write_parquet([rows], file)
    return True


def is_compacted(storage: Storage) -> bool:
    files = list_recorded_files(storage, "rows")
    return not (files.parts or files.obsolete)


def compact_ended(folder: RunFolder) -> None:
    """Compact a run that has ended, if a kill or failure prevented that. Any reader may call
    this."""
    if is_compacted(folder.storage) or folder.read_metadata().status not in COMPLETE:
        return
    with (
        suppress(Exception),
        folder.lease(),
    ):  # without permission or memory, readers use the files as they are
        compact(folder.storage, folder.read_attempts())
