"""Readers of the newest data in growing files. They read each byte once."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from time import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.records.metadata import Attempt
from orchestrator.records.reports import check_report
from orchestrator.records.run_folder import parse_numbers
from orchestrator.stats.read.columns import concat_rows
from orchestrator.stats.read.dataset import read_parquet
from orchestrator.stats.read.recorded_files import COMPACTED, open_parquet, warn_lost_rows
from orchestrator.stats.read.tables import load
from orchestrator.stats.write.checksums import read_stream
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
    """The newest rows and the memory peaks of one rank in one attempt."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self._sizes: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._schemas: dict[str, pa.Schema] = {}
        self._newest_segment = -1
        """Number of the newest segment."""
        self._rows_since_segment = 0
        """Number of rows read after it."""
        self.window: deque[pa.RecordBatch] = deque()
        """Batches with the last WINDOW training rows."""
        self.newest: dict[str, Any] = {}
        self.trained = 0
        """Training iterations completed."""
        self.written: float | None = None
        """Time of the last write, in seconds since 1970."""
        self.peaks: dict[str, float] = {}
        """Largest value of each column that ends in `_bytes`."""

    def update(self, listed: Mapping[str, FileState] | None = None) -> None:
        """Read what was written since the last call, even if parts have become a segment.

        `listed` has the rank's files by name, sorted, if the caller has listed them.
        """
        files = {
            name: state
            for name, state in (self._storage.tree(self._folder) if listed is None else listed).items()
            if name.startswith("rows-")
        }
        segments = [name for name in files if name.endswith(".parquet") and _parse_number(name) > self._newest_segment]
        for name in segments:
            self._read_segment(name, is_newest=name == segments[-1])
        for name in [name for name in files if name.endswith(".arrow") and _parse_number(name) > self._newest_segment]:
            size, modified = files[name]
            if size == self._sizes.get(name):
                continue
            try:
                for batch in self._read_new_batches(name):
                    self._rows_since_segment += batch.num_rows
                    self.add(batch)
            except FileNotFoundError:  # now part of a segment, which the next call reads
                return
            self._sizes[name] = size
            self.written = time() if modified is None else modified

    def _read_segment(self, name: str, is_newest: bool) -> None:
        """Read the rows of a segment that were not read as parts, or only its peaks if a newer segment follows."""
        path, before = f"{self._folder}/{name}", self._rows_since_segment
        with open_parquet(self._storage, path) as file:
            metadata = pq.read_metadata(file)
        self._newest_segment, self._rows_since_segment = _parse_number(name), max(0, before - metadata.num_rows)
        if metadata.num_rows <= before:
            return
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(metadata.num_columns)):
                self._update_peak(column.path_in_schema, column.statistics and column.statistics.max)
        if is_newest:
            self._add_last_rows(read_parquet(self._storage, path).slice(before))

    def _add_last_rows(self, rows: pa.Table) -> None:
        """Add the last training rows and the last other rows. `rows` are sorted, oldest first."""
        is_training = pc.equal(rows["phase"], "train").to_numpy()
        for mask in sorted((is_training, ~is_training), key=lambda mask: bool(mask[-1])):
            for batch in rows.take(np.flatnonzero(mask)[-WINDOW:]).to_batches():
                self.add(batch)

    def _read_new_batches(self, name: str) -> list[pa.RecordBatch]:
        """Return the complete batches that a stream has gained since the last call."""
        path, start = f"{self._folder}/{name}", self._ends.get(name, 0)
        data = self._storage.read(path, start)
        stream = read_stream(data, str(self._storage / path), self._schemas.get(name), start)
        if stream.schema is not None:
            self._schemas[name], self._ends[name] = stream.schema, stream.end
        return stream.batches

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of one phase, sorted oldest first."""
        if not batch.num_rows:
            return
        self.newest = batch.slice(batch.num_rows - 1).to_pylist()[0]
        for name in batch.schema.names:
            if name.endswith("_bytes"):
                self._update_peak(name, pc.max(batch.column(name)).as_py())
        if self.newest["phase"] != "train":
            return
        self.trained = self.newest["iteration"]
        self.window.append(batch)
        while sum(batch.num_rows for batch in self.window) - self.window[0].num_rows >= WINDOW:
            self.window.popleft()

    def _update_peak(self, name: str, value: Any) -> None:
        if name.endswith("_bytes") and value is not None:
            self.peaks[name] = max(value, self.peaks.get(name, value))


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
            tail.add(pa.RecordBatch.from_pandas(rank_rows, preserve_index=False))

    def training_rows(self) -> pa.Table:
        """Return the last WINDOW training rows of each rank."""
        windows = [
            concat_rows(
                [pa.Table.from_batches([*group]) for _, group in groupby(tail.window, lambda batch: batch.schema)]
            )
            for tail in self.ranks.values()
        ]
        return concat_rows([rows.slice(max(0, len(rows) - WINDOW)) for rows in windows])
