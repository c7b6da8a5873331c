"""Compaction of the files of a run that has ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from orchestrator.records.metadata import Attempt
from orchestrator.records.run_folder import COMPLETE, RunFolder
from orchestrator.stats.aggregate.usage import add_usage
from orchestrator.stats.read.dataset import make_source, narrow_counters, read_schema
from orchestrator.stats.read.recorded_files import COMPACTED, RecordedFile, RecordedFiles, list_recorded_files
from orchestrator.stats.read.tables import sort_rows
from orchestrator.stats.write.checksums import write_parquet
from orchestrator.stats.write.segments import add_superseded_column, rewrite_as_segment, update_superseded_column
from orchestrator.storage import Storage

JOINED_ROWS = 2**20
"""A run of at most this many rows becomes one file; a longer one keeps a file for each rank."""


def compact(storage: Storage, attempts: Sequence[Attempt]) -> None:
    """Write `stats.parquet` and `hooks.parquet`, or Parquet files of each rank for a long run.

    The driver calls it after all ranks have ended. Superseded rows stay, marked. After a kill at any moment
    `list_recorded_files` finds every row once. The rows come last, so that they show whether work is left.
    """
    gone: list[str] = []
    kept: set[str] = set()
    for table in ("costs", "rows"):
        files = list_recorded_files(storage, table)
        own = [*files.segments, *files.parts]
        gone += files.left
        if own and _join(storage, table, files, attempts):
            gone += [file.path for file in own]
            continue
        kept |= {file.folder for file in own}
        if table == "rows" and attempts:
            done_again = [segment for segment in files.segments if segment.attempt < attempts[-1].number]

            def mark_segment(segment: RecordedFile) -> None:
                update_superseded_column(storage, segment.path, attempts, attempt=segment.attempt, rank=segment.rank)

            storage.each(mark_segment, done_again)
            if files.joined:
                update_superseded_column(storage, files.joined, attempts)
        storage.each(lambda parts: rewrite_as_segment(storage, parts, attempts), files.tails)
    if storage.local is None:  # removing a folder takes fewer requests
        gone = [path if (folder := path.rpartition("/")[0]) in kept else folder for path in gone]
    storage.each(storage.delete, sorted(set(gone)))


def _join(storage: Storage, table: str, files: RecordedFiles, attempts: Sequence[Attempt]) -> bool:
    """Write the table's file, if it has few rows."""
    schema, in_parquet = read_schema(storage, files)
    if in_parquet > JOINED_ROWS:
        return False
    source = make_source(storage, files, schema)
    if source.data.count_rows() > JOINED_ROWS:
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
    return not (files.parts or files.left)


def compact_ended(folder: RunFolder) -> None:
    """Compact a run that has ended, if a kill or failure prevented that. Any reader may call this."""
    if is_compacted(folder.storage) or folder.read_metadata().status not in COMPLETE:
        return
    with suppress(Exception), folder.lease():  # no permission, or no memory: it can be read as it is
        compact(folder.storage, folder.read_attempts())
