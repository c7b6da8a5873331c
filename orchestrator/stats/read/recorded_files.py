"""The files in which what the ranks of a run recorded lies, so that each row stands in exactly one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.errors import DamagedFile
from orchestrator.records.metadata import Attempt
from orchestrator.stats.write.checksums import CopiedFile, check_footer
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import left_out

COMPACTED = {"rows": "stats.parquet", "costs": "hooks.parquet"}
"""Where a finished run of few rows keeps each table."""
ADVICE = (
    "Put back a copy of it; without one what its ranks recorded is lost. Reports and checkpoints do not depend on it"
)
"""What can be done where one of these files is damaged."""
_PATH = re.compile(
    r"stats/attempt=(?P<attempt>[0-9]+)/rank=(?P<rank>[0-9]+)/(?P<table>rows|costs)-(?P<number>[0-9]+)\.(?P<kind>arrow|parquet)"
)


class Recorded(NamedTuple):
    """A file of one rank in one attempt."""

    attempt: int
    rank: int
    number: int
    path: str
    """In the run's folder."""

    @property
    def folder(self) -> str:
        """Where the rank's other files of the attempt lie."""
        return self.path.rpartition("/")[0]

    @property
    def is_segment(self) -> bool:
        """Whether it is Parquet, to which nothing is added any more."""
        return self.path.endswith(".parquet")


@dataclass(frozen=True)
class RecordedFiles:
    """What there is of one table of a run: every row is in one of these files, and in no two."""

    joined: str | None
    """The file into which all attempts up to some are joined."""
    segments: Sequence[Recorded]
    """Parquet files of one rank each, in order of attempt, rank and number; in each rank's order of time."""
    parts: Sequence[Recorded]
    """Arrow streams that may grow, in the same order. They come after the segments of their rank."""
    left: Sequence[str]
    """Files of which every row is in one of the others by now."""

    @property
    def tails(self) -> list[list[Recorded]]:
        """The parts of each rank, in order."""
        return [[*parts] for _, parts in groupby(self.parts, key=lambda part: part.folder)]


def recorded_files(storage: Storage, table: str, folder: str = "stats") -> RecordedFiles:
    """Which files of a run hold a table, `rows` or `costs`; `storage` is the run's folder, `folder` a part of it.

    A rank writes parts, and now and then rewrites those it has ended as a segment: a segment holds every part up to its
    own number that no segment before it holds. A joined file holds all attempts up to its newest.
    """
    joined = COMPACTED[table] if storage.exists(COMPACTED[table]) else None
    files = sorted(_listed(storage, table, folder))
    joined_up_to = _newest_attempt(storage, joined) if joined and files else -1
    held = {file.folder: file.number for file in files if file.is_segment}
    there = [file for file in files if file.attempt > joined_up_to]
    segments = [file for file in there if file.is_segment]
    parts = [file for file in there if not file.is_segment and file.number > held.get(file.folder, -1)]
    counting = {*segments, *parts}
    return RecordedFiles(joined, segments, parts, [file.path for file in files if file not in counting])


def tell_lost_rows(storage: Storage, attempts: Sequence[Attempt]) -> None:
    """Warn where a run that is over has none of the rows that its attempts recorded."""
    files = recorded_files(storage, "rows")
    if any(attempt.has_own_rows for attempt in attempts) and not (files.joined or files.segments or files.parts):
        left_out(storage / COMPACTED["rows"], "it is gone, and with it the rows")


def _listed(storage: Storage, table: str, folder: str) -> Iterator[Recorded]:
    for name in storage.tree(folder):
        found = _PATH.fullmatch(f"{folder}/{name}")
        if found and found["table"] == table:
            yield _recorded(found)


def recorded_at(path: str) -> Recorded:
    """The file of a rank at a path."""
    found = _PATH.fullmatch(path)
    assert found is not None
    return _recorded(found)


def _recorded(found: re.Match[str]) -> Recorded:
    return Recorded(int(found["attempt"]), int(found["rank"]), int(found["number"]), found[0])


def _newest_attempt(storage: Storage, joined: str) -> int:
    with opened_parquet(storage, joined) as file:
        metadata = pq.read_metadata(file)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    place = metadata.schema.names.index("attempt") if "attempt" in metadata.schema.names else None
    return max((group.column(place).statistics.max for group in groups), default=-1) if place is not None else -1


@contextmanager
def opened_parquet(storage: Storage, path: str, *, at_once: bool = False) -> Iterator[Any]:
    """A Parquet file of a run, its footer checked; raises DamagedFile where it cannot be read within, or a checksum
    does not hold. `at_once` fetches all of it from a store in one request, which for a few MB takes less time than
    many."""
    try:
        with pa.BufferReader(storage.read(path)) if at_once and storage.local is None else storage.open(path) as file:
            check_footer(file, path)
            yield file
    except FileNotFoundError:
        raise
    except CopiedFile as error:
        raise DamagedFile(str(storage / path), str(error), error.advice) from error
    except (OSError, pa.ArrowException) as error:
        raise DamagedFile(str(storage / path), str(error), ADVICE) from error
