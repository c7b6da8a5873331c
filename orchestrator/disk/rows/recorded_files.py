"""The files that ranks recorded, selected so that each row is in exactly one of them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.disk.attempts import Attempt
from orchestrator.errors import DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.format_version import check_metadata
from orchestrator.storage.omissions import log_omission

TableName = Literal["rows", "costs"]
"""Tables that a rank records: its rows, and the costs of its hooks."""
TABLES: tuple[TableName, ...] = get_args(TableName)
COMPACTED: dict[TableName, str] = {"rows": "stats.parquet", "costs": "hooks.parquet"}
"""Files of the tables of a finished, short run."""
ADVICE = "Put back a copy of it; otherwise what its ranks recorded is lost. Reports and checkpoints do not depend on it"
"""Advice for a damaged file of rows."""
_PATH = re.compile(
    r"stats/attempt=([0-9]+)/rank=([0-9]+)/(?:rows|costs)-([0-9]+)\.(?:arrow|parquet)"
)


class RecordedFile(NamedTuple):
    """A file of one rank in one attempt."""

    attempt: int
    rank: int
    number: int
    path: str
    """Path in the run's folder."""

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def table(self) -> TableName:
        return next(table for table in TABLES if f"/{table}-" in self.path)

    @property
    def is_segment(self) -> bool:
        """True for a Parquet file, which no longer grows."""
        return self.path.endswith(".parquet")


@dataclass(frozen=True)
class RecordedFiles:
    """The files of one table of a run. Each row is in exactly one file."""

    joined: str | None
    """File with the rows of all attempts up to some attempt."""
    segments: Sequence[RecordedFile]
    """Parquet files of one rank each, sorted by attempt, rank and number."""
    parts: Sequence[RecordedFile]
    """Arrow streams that may still grow, in the same order. They are newer than their rank's
    segments."""
    obsolete: Sequence[str]
    """Paths of files whose rows are all in other files by now."""

    @property
    def parts_by_rank(self) -> list[list[RecordedFile]]:
        return [[*parts] for _, parts in groupby(self.parts, key=lambda part: part.folder)]


def list_recorded_files(storage: Storage, table: TableName, folder: str = "stats") -> RecordedFiles:
    """Return the files of a table; `storage` is the run's folder, `folder` a subfolder.

    A segment contains its rank's parts up to its number, a joined file all attempts up to its
    newest.
    """
    joined = COMPACTED[table] if storage.exists(COMPACTED[table]) else None
    recorded = (parse_recorded_path(f"{folder}/{name}") for name in storage.tree(folder))
    files = sorted(file for file in recorded if file and file.table == table)
    newest_joined = _find_newest_attempt(storage, joined) if joined and files else -1
    newest_segments = {file.folder: file.number for file in files if file.is_segment}

    segments = []
    parts = []
    obsolete = []
    for file in files:
        if file.attempt <= newest_joined:
            obsolete.append(file.path)
        elif file.is_segment:
            segments.append(file)
        elif file.number > newest_segments.get(file.folder, -1):
            parts.append(file)
        else:
            obsolete.append(file.path)
    return RecordedFiles(joined, segments, parts, obsolete)


def warn_lost_rows(storage: Storage, attempts: Sequence[Attempt]) -> None:
    """Warn if a finished run has lost all rows that its attempts recorded."""
    files = list_recorded_files(storage, "rows")
    has_files = files.joined or files.segments or files.parts
    if not has_files and any(attempt.has_own_rows for attempt in attempts):
        log_omission(storage / COMPACTED["rows"], "it is missing, and with it the rows")


def parse_recorded_path(path: str) -> RecordedFile | None:
    """Return a file of one rank by its path; None for another file."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    attempt, rank, number = map(int, match.groups())
    return RecordedFile(attempt, rank, number, path)


def _find_newest_attempt(storage: Storage, joined: str) -> int:
    with open_parquet(storage, joined) as parquet:
        if "attempt" not in parquet.schema_arrow.names:
            return -1
        return int(parquet.read(["attempt"])["attempt"].to_numpy().max(initial=-1))


@contextmanager
def open_parquet(
    storage: Storage, path: str, *, prefetch: bool = False, advice: str = ADVICE
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file of a run. Raises DamagedFile, even for errors while the caller reads it,
    and NewerFormat.

    `prefetch` reads a remote file in one request, which is faster for a few MB. `advice` says what
    to do about a damaged file.
    """
    try:
        is_prefetched = prefetch and storage.local is None
        source = pa.BufferReader(storage.read(path)) if is_prefetched else storage.open(path)
        with source, pq.ParquetFile(source, page_checksum_verification=True) as parquet:
            check_metadata(parquet.metadata.metadata, storage / path)
            yield parquet
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise DamagedFile(str(storage / path), str(error), advice) from error
