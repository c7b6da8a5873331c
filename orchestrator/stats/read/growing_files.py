"""Readers of the newest data in growing files. They read each byte once."""

from collections.abc import Mapping, Sequence
from time import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.records.metadata import Attempt, check_report
from orchestrator.records.run_folder import parse_numbers
from orchestrator.stats.read.columns import concat_rows
from orchestrator.stats.read.dataset import read_parquet
from orchestrator.stats.read.recorded_files import COMPACTED, open_parquet, warn_lost_rows
from orchestrator.stats.read.tables import load
from orchestrator.stats.write.checksums import END_OF_STREAM, Stream, read_stream
from orchestrator.storage import FileState, Storage
from orchestrator.storage.stored_data import parse_lines

WINDOW = 400
"""Number of recent training rows to keep for each rank."""


class LineTail:
    """Incremental reader of the reports in a file."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._end = self._lines = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new reports, from complete lines only."""
        try:
            added = self._storage.read(self._name, self._end)
        except FileNotFoundError:
            return []
        lines = added[: added.rfind(b"\n") + 1]
        self._end += len(lines)
        first, self._lines = self._lines + 1, self._lines + lines.count(b"\n")
        return parse_lines(lines, str(self._storage / self._name), check_report, first)


class RankTail:
    """The newest rows of one rank in one attempt."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self._streams: dict[str, Stream] = {}
        """Last read of each part, by name."""
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

    def update(self, files: Mapping[str, FileState]) -> None:
        """Read what was written since the last call, even if parts have become a segment.

        `files` are the rank's files by name, sorted.
        """
        segments = self._select_newer(files, ".parquet")
        for name in segments:
            path, read = f"{self._folder}/{name}", self._rows_since_segment
            with open_parquet(self._storage, path) as file:
                total = pq.read_metadata(file).num_rows
            self._newest_segment, self._rows_since_segment = _parse_number(name), max(0, read - total)
            if total > read and name == segments[-1]:
                self.add(read_parquet(self._storage, path).slice(read))
        for name in self._select_newer(files, ".arrow"):
            size, modified = files[name]
            before = self._streams.get(name, Stream(None, [], 0))
            if size - before.end <= len(END_OF_STREAM):
                continue
            path = f"{self._folder}/{name}"
            try:
                data = self._storage.read(path, before.end)
            except FileNotFoundError:  # now part of a segment, which the next call reads
                return
            stream = read_stream(data, str(self._storage / path), before.schema, before.end)
            self._streams[name] = stream._replace(batches=[])
            if stream.batches:
                rows = pa.Table.from_batches(stream.batches)
                self._rows_since_segment += len(rows)
                self.add(rows)
            self.written = time() if modified is None else modified

    def _select_newer(self, files: Mapping[str, FileState], suffix: str) -> list[str]:
        """Return the files of rows after the newest segment."""
        rows = [name for name in files if name.startswith("rows-") and name.endswith(suffix)]
        return [name for name in rows if _parse_number(name) > self._newest_segment]

    def add(self, rows: pa.Table) -> None:
        """Add rows, sorted oldest first."""
        self.newest = rows.slice(len(rows) - 1).to_pylist()[0]
        window = concat_rows([self.window, rows.filter(pc.equal(rows["phase"], "train"))])
        self.window = window.slice(max(0, len(window) - WINDOW)).combine_chunks()


def _parse_number(name: str) -> int:
    return int(name.partition("-")[2].partition(".")[0])


class AttemptTail:
    """The newest rows of all ranks of one attempt. `folder` is the attempt's folder."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self._ranks: dict[int, RankTail] = {}

    @property
    def ranks(self) -> dict[int, RankTail]:
        return {rank: tail for rank, tail in sorted(self._ranks.items()) if tail.newest}

    def update(self) -> None:
        """Read what all ranks wrote since the last call."""
        listed: dict[str, dict[str, FileState]] = {}
        for path, state in self._storage.tree(self._folder).items():
            folder, _, name = path.partition("/")
            listed.setdefault(folder, {})[name] = state
        for rank in parse_numbers([*listed], "rank="):
            if rank not in self._ranks:
                self._ranks[rank] = RankTail(self._storage, f"{self._folder}/rank={rank}")
        self._storage.map(lambda rank: self._ranks[rank].update(listed.get(f"rank={rank}", {})), self._ranks)

    def read_compacted(self, attempts: Sequence[Attempt], iteration: int) -> None:
        """Read the last training rows of a compacted run, which ended with `iteration`."""
        if not self._storage.exists(COMPACTED["rows"]):
            warn_lost_rows(self._storage, attempts)
            return
        rows = load(self._storage, attempts, None, f"phase = 'train' and iteration > {iteration - WINDOW}")
        for rank, rank_rows in rows.astype({"phase": str, "node": str}).groupby("rank"):
            tail = self._ranks.setdefault(int(str(rank)), RankTail(self._storage, f"{self._folder}/rank={rank}"))
            tail.add(pa.Table.from_pandas(rank_rows, preserve_index=False).replace_schema_metadata())

    def training_rows(self) -> pa.Table:
        """Return the last WINDOW training rows of each rank."""
        return concat_rows([tail.window for tail in self.ranks.values()])
