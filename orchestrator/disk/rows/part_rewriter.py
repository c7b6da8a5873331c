"""Rewriting the parts of one rank as Parquet segments."""

import logging
from collections.abc import Sequence
from threading import Lock, Thread

from orchestrator.disk.rows.rank_table import RankTable
from orchestrator.storage import Storage

MIN_SEGMENT_ROWS = 2**11
"""Minimum rows of a segment, as long as its run records."""
SEGMENT_ROWS = 2**16

_log = logging.getLogger("hookyard")


class PartRewriter:
    """Rewrites parts of tables as segments, in the calling thread or in its own.

    If that fails, it keeps the parts, and tries again once there are twice as many rows.
    """

    def __init__(self, storage: Storage, folder: str, tables: Sequence[RankTable]) -> None:
        self._storage = storage
        self._folder = folder
        self._tables = tables
        self._retry_rows = dict.fromkeys(tables, 0)
        """After a failure, the number of open rows of a table at which to retry."""
        self._thread: Thread | None = None
        self._lock = Lock()
        """Lets one thread rewrite parts at a time."""

    def start_if_due(self) -> None:
        """Rewrite the parts that are due in a thread, unless it is still running."""
        if self._thread is not None and self._thread.is_alive():
            return
        if any(map(self._is_due, self._tables)):
            self._thread = Thread(target=self.rewrite_due, name="rows", daemon=True)
            self._thread.start()

    def rewrite_due(self) -> None:
        """Rewrite the parts of each table that has enough rows in them."""
        with self._lock:
            for table in filter(self._is_due, self._tables):
                self._rewrite(table)

    def rewrite_last(self) -> None:
        """Rewrite the last parts, of each table that has enough rows for a segment."""
        with self._lock:
            for table in self._tables:
                if table.open_rows >= MIN_SEGMENT_ROWS:
                    self._rewrite(table)

    def _is_due(self, table: RankTable) -> bool:
        """Return whether open rows are a fifth of all rows. This bounds the numbers of segments and
        of open rows."""
        due_rows = min(max(table.segment_rows // 4, MIN_SEGMENT_ROWS), SEGMENT_ROWS)
        return table.open_rows >= max(self._retry_rows[table], due_rows)

    def _rewrite(self, table: RankTable) -> None:
        from orchestrator.disk.rows.compaction import compact_parts  # a slow import

        try:
            parts = table.end_parts()
            table.sync()
            compact_parts(self._storage, [recorded for recorded, _ in parts])
        except Exception as error:  # the parts are kept
            message = "Cannot rewrite rows of %s as Parquet; they stay in Arrow files: %s"
            _log.warning(message, self._folder, error)
            self._retry_rows[table] = 2 * table.open_rows
        else:
            table.replace_parts(len(parts))
