"""Compaction: what a run that has ended leaves of the files of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from orchestrator.records.metadata import Attempt
from orchestrator.records.run_driver import make_lease
from orchestrator.records.run_folder import ENDED, RunFolder
from orchestrator.stats.aggregate.usage import with_usage
from orchestrator.stats.read.reading import described, narrow, source_of
from orchestrator.stats.read.recorded_files import COMPACTED, RecordedFiles, recorded_files
from orchestrator.stats.read.tables import in_order
from orchestrator.stats.write.checksums import write_parquet
from orchestrator.stats.write.segments import mark, pack, with_mark
from orchestrator.storage import Storage

JOINED_ROWS = 2**20
"""A run of so many rows at most becomes one file; of one that has more the files of each rank stay."""


def compact(storage: Storage, attempts: Sequence[Attempt]) -> None:
    """Puts what was recorded of a run into the files in which it stays: `stats.parquet` and `hooks.parquet`, each where
    it has JOINED_ROWS at most, else Parquet files of each rank. Driver, once no rank writes any more.

    Rows that were done again stay, marked. A kill at any moment leaves every row where `recorded_files` finds it, once;
    rows are last, so that what is left to do is seen by them.
    """
    gone: list[str] = []
    kept: set[str] = set()
    for table in ("costs", "rows"):
        files = recorded_files(storage, table)
        own = [*files.segments, *files.parts]
        gone += files.left
        if own and _join(storage, table, files, attempts):
            gone += [file.path for file in own]
            continue
        kept |= {file.folder for file in own}
        if table == "rows" and attempts:
            done_again = [segment for segment in files.segments if segment.attempt < attempts[-1].number]
            storage.each(lambda segment: mark(storage, segment.path, attempts, segment.attempt), done_again)
            if files.joined:
                mark(storage, files.joined, attempts)
        storage.each(lambda parts: pack(storage, parts, attempts), files.tails)
    if storage.local is None:  # where a folder is removed in fewer requests than its files
        gone = [path if (folder := path.rpartition("/")[0]) in kept else folder for path in gone]
    storage.each(storage.delete, sorted(set(gone)))


def _join(storage: Storage, table: str, files: RecordedFiles, attempts: Sequence[Attempt]) -> bool:
    """Write the table's file, if it has few rows."""
    schema, in_parquet = described(storage, files)
    if in_parquet > JOINED_ROWS:
        return False
    source = source_of(storage, files, schema)
    if source.data.count_rows() > JOINED_ROWS:
        return False
    rows = narrow(source.read())
    if len(rows):
        rows = in_order(rows)
        if table == "rows":
            rows = with_usage(with_mark(rows, attempts), attempts)
        with storage.create(COMPACTED[table]) as file:
            write_parquet([rows], file, COMPACTED[table])
    return True


def is_compacted(storage: Storage) -> bool:
    """Whether what was recorded lies where it stays, so far as no rank has recorded more since."""
    files = recorded_files(storage, "rows")
    return not (files.parts or files.left)


def compact_ended(folder: RunFolder) -> None:
    """Compacts a run that has ended, where that was killed or failed, and may be done from here. In any process that
    reads it."""
    if is_compacted(folder.storage) or folder.metadata().status not in ENDED:
        return
    with suppress(Exception), make_lease(folder):  # somebody else's run, storage or memory: it is read as it is
        compact(folder.storage, folder.attempts())
