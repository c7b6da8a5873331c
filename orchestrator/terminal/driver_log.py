"""The log of a run's or sweep's driver."""

import logging
import time

from orchestrator.errors import StorageError
from orchestrator.storage import Storage

_LOG_BATCH_LINES = 20
"""Lines per write on an object store, where each write replaces the whole log."""

_logger = logging.getLogger("hookyard")


class DriverLog:
    """Log of lines with their time in `log.txt`; without a storage, it drops them."""

    def __init__(self, storage: Storage | None) -> None:
        self._storage = storage
        self._batch_lines = 1 if storage and storage.local else _LOG_BATCH_LINES
        self._pending: list[str] = []

    def add(self, text: str) -> None:
        """Add a line, which an object store gets with the next batch."""
        self._pending.append(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
        if len(self._pending) >= self._batch_lines:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait for a batch."""
        lines = self._pending
        self._pending = []
        if self._storage is None or not lines:
            return

        try:
            self._storage.append("log.txt", "".join(lines))
        except StorageError as error:
            # A failed write of the log must not end training or mask an earlier error.
            _logger.warning("%d lines are missing from the log: %s", len(lines), error)
