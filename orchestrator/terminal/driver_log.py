"""The driver's log: the lines that a display shows, with the time of each."""

from __future__ import annotations

import time

from orchestrator.storage import Storage

_LINES_AT_ONCE = 20


class DriverLog:
    """Keeps lines in `log.txt`, some at a time; nowhere where there is no storage. Driver, or a run in one process."""

    def __init__(self, storage: Storage | None) -> None:
        self._storage = storage
        self._pending: list[str] = []

    def add(self, text: str) -> None:
        """Takes one line."""
        self._pending.append(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
        if len(self._pending) >= _LINES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending."""
        if self._storage is not None and self._pending:
            self._storage.append("log.txt", "".join(self._pending))
        self._pending = []
