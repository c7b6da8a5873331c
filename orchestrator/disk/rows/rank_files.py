"""The files of one rank: parts that grow, later rewritten as Parquet segments."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from orchestrator.disk.rows.part_rewriter import PartRewriter
from orchestrator.disk.rows.periodic_upload import PeriodicUpload
from orchestrator.disk.rows.rank_table import RankTable
from orchestrator.disk.rows.recorded_files import TABLES, TableName
from orchestrator.storage import Storage


class RankFiles:
    """Writer of one rank's rows. Used in workers.

    It appends rows to parts, and rewrites parts as segments in a thread. After a kill, parts on a
    disk can be read up to the last whole batch. On an object store a thread uploads grown parts
    every `upload_interval_s`; `sync` retries a failure at the latest.
    """

    def __init__(
        self, storage: Storage, folder: str, identity: Mapping[str, Any], upload_interval_s: float
    ) -> None:
        self._is_remote = storage.local is None
        self._tables = {name: RankTable(storage, folder, name, identity) for name in TABLES}
        self._rewriter = PartRewriter(storage, folder, [*self._tables.values()])
        self._uploads = PeriodicUpload(self._upload, upload_interval_s, folder)

    def write(self, table: TableName, arrays: Mapping[str, pa.Array], count: int) -> None:
        """Write `count` rows of a table. Raises StorageError."""
        self._tables[table].append(arrays, count)
        if self._is_remote:
            self._uploads.start()
        else:
            self._rewriter.start_if_due()

    def sync(self) -> None:
        """Wait until other processes can read everything written so far. Raises StorageError."""
        for table in self._tables.values():
            table.sync()

    def close(self) -> None:
        """End all files, and rewrite them as segments. Raises StorageError."""
        self._uploads.stop()
        # Each file is closed, also after a failure to end another.
        with ExitStack() as ends:
            for table in self._tables.values():
                ends.callback(table.end_parts)
        self.sync()
        self._rewriter.rewrite_last()

    def _upload(self) -> None:
        self.sync()
        self._rewriter.rewrite_due()
