"""Readers of the newest data in growing files. They read each byte once."""

from collections.abc import Mapping, Sequence
from time import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.reports import check_report
from orchestrator.disk.rows.columns import concat_rows
from orchestrator.disk.rows.file_format import END_OF_STREAM, Stream, read_stream
from orchestrator.disk.rows.file_rows import read_parquet
from orchestrator.disk.rows.recorded_files import (
    COMPACTED,
    RecordedFile,
    open_parquet,
    parse_recorded_path,
    warn_lost_rows,
)
from orchestrator.storage import FileState, Storage
from orchestrator.storage.json_lines import parse_lines
from orchestrator.tables.frames import load

WINDOW = 400
"""Number of recent training rows to keep for each rank."""


class LineTail:
    """Incremental reader of the reports in a file."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._end = 0
        self._n_lines = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new reports, from complete lines only."""
        try:
            added = self._storage.read(self._name, self._end)
        except FileNotFoundError:
            return []
        lines = added[: added.rfind(b"\n") + 1]
        self._end += len(lines)
        first = self._n_lines + 1
        self._n_lines += lines.count(b"\n")
        return parse_lines(lines, str(self._storage / self._name), check_report, first)


class RankTail:
    """The newest rows of one rank in one attempt."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._streams: dict[int, Stream] = {}
        """Last read of each part, by number."""
        self._newest_segment = -1
        """Number of the newest segment."""
        self._rows_since_segment = 0
        """Number of rows read after it."""
        self.window = pa.table({})
        """The last WINDOW training rows."""
        self.newest: dict[str, Any] = {}
        self.written: float | None = None
        """Time of the last write, in seconds since 1970."""

    @property
    def trained(self) -> int:
        """Training iterations completed."""
        return int(self.window["iteration"][-1].as_py()) if len(self.window) else 0

    @property
    def peaks(self) -> dict[str, float | None]:
        """Largest value of each column of bytes in the window."""
        names = [name for name in self.window.column_names if name.endswith("_bytes")]
        return {name: pc.max(self.window[name]).as_py() for name in names}

    def update(self, files: Mapping[RecordedFile, FileState]) -> None:
        """Read the rows written since the last call, even if parts have become a segment. `files`
        are the rank's."""
        segments = [file for file in files if file.is_segment]
        self._read_segments(self._list_new(segments))
        parts = [file for file in files if not file.is_segment]
        for part in self._list_new(parts):
            try:
                self._read_part(part, files[part])
            except FileNotFoundError:  # now part of a segment, which the next call reads
                return

    def _list_new(self, files: Sequence[RecordedFile]) -> list[RecordedFile]:
        """Return the files after the newest segment, oldest first."""
        return sorted(file for file in files if file.number > self._newest_segment)

    def _read_segments(self, segments: Sequence[RecordedFile]) -> None:
        for segment in segments:
            read = self._rows_since_segment
            with open_parquet(self._storage, segment.path) as parquet:
                total = parquet.metadata.num_rows
            self._newest_segment = segment.number
            self._rows_since_segment = max(0, read - total)
            if total > read and segment == segments[-1]:
                self.add(read_parquet(self._storage, segment.path).slice(read))

    def _read_part(self, part: RecordedFile, state: FileState) -> None:
        size, modified = state
        before = self._streams.get(part.number, Stream(None, [], 0))
        if size - before.end <= len(END_OF_STREAM):
            return

        data = self._storage.read(part.path, before.end)
        stream = read_stream(data, str(self._storage / part.path), before.schema, before.end)
        self._streams[part.number] = stream._replace(batches=[])
        if stream.batches:
            rows = pa.Table.from_batches(stream.batches)
            self._rows_since_segment += len(rows)
            self.add(rows)
        self.written = time() if modified is None else modified

    def add(self, rows: pa.Table) -> None:
        """Add rows, sorted oldest first."""
        self.newest = rows.slice(len(rows) - 1).to_pylist()[0]
        window = concat_rows([self.window, rows.filter(pc.equal(rows["phase"], "train"))])
        self.window = window.slice(max(0, len(window) - WINDOW)).combine_chunks()


class AttemptTail:
    """The newest rows of all ranks of one attempt. `folder` is the attempt's folder."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._ranks: dict[int, RankTail] = {}

    @property
    def ranks(self) -> dict[int, RankTail]:
        return {rank: tail for rank, tail in sorted(self._ranks.items()) if tail.newest}

    def update(self) -> None:
        """Read what all ranks wrote since the last call."""
        by_rank: dict[int, dict[RecordedFile, FileState]] = {}
        for path, state in self._storage.tree(self._folder).items():
            file = parse_recorded_path(f"{self._folder}/{path}")
            if file and file.table == "rows":
                by_rank.setdefault(file.rank, {})[file] = state
        for rank in by_rank:
            self._ranks.setdefault(rank, RankTail(self._storage))
        self._storage.map(lambda rank: self._ranks[rank].update(by_rank[rank]), by_rank)

    def read_compacted(self, attempts: Sequence[Attempt], iteration: int) -> None:
        """Read the last training rows of a compacted run, which ended with `iteration`."""
        if not self._storage.exists(COMPACTED["rows"]):
            warn_lost_rows(self._storage, attempts)
            return
        where = f"phase = 'train' and iteration > {iteration - WINDOW}"
        rows = load(self._storage, attempts, None, where)
        for rank, rank_rows in rows.astype({"phase": str, "node": str}).groupby("rank"):
            tail = self._ranks.setdefault(int(str(rank)), RankTail(self._storage))
            table = pa.Table.from_pandas(rank_rows, preserve_index=False)
            tail.add(table.replace_schema_metadata())

    def training_rows(self) -> pa.Table:
        """Return the last WINDOW training rows of each rank."""
        return concat_rows([tail.window for tail in self.ranks.values()])
