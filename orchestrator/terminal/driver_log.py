"""The driver's log: the lines that a display shows, with the time of each."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from orchestrator.errors import StorageError
from orchestrator.storage import Storage

logger = logging.getLogger("hookyard")

_LINES_AT_ONCE = 20
"""On an object store, where a line more is the whole log anew."""


class DriverLog:
    """Keeps lines in `log.txt`, on an object store some at a time; nowhere where there is no storage. Driver, or a run
    in one process."""

    def __init__(self, storage: Storage | None) -> None:
        self._storage = storage
        self._lines_at_once = 1 if storage and storage.local else _LINES_AT_ONCE
        self._pending: list[str] = []

    def add(self, text: str) -> None:
        """Takes one line."""
        self._pending.append(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
        if len(self._pending) >= self._lines_at_once:
            self.flush()

    def close(self) -> None:
        """Writes what is pending, and makes one file of it all."""
        self.flush()
        if self._storage is not None:
            with suppress(StorageError):
                self._storage.join("log.txt")

    def flush(self) -> None:
        """Writes what is pending."""
        lines, self._pending = self._pending, []
        if self._storage is None or not lines:
            return
        try:
            self._storage.append("log.txt", "".join(lines))
        except StorageError as error:  # training does not hang on its log, and what failed before is what is told
            logger.warning("the log lacks %d lines: %s", len(lines), error)
