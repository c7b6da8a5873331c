"""Files of a training that several runs share: the first that saves at a place writes them, and the others give them a
second name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.checkpoint.store import CheckpointStore

_Entry = dict[str, Any]


class TrainingFiles:
    """Which checkpoint holds what the training was at its present place, for the runs that share it. In each worker
    process; the master's acts.

    A hard link is as good as a copy, as a file of a checkpoint is replaced or deleted, and never written into.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files = [f"{file}.pt" for file in files]
        self._place: object = None
        self._stored: tuple[CheckpointStore, str, Mapping[str, _Entry]] | None = None

    def link(self, place: object, store: CheckpointStore, name: str) -> dict[str, _Entry]:
        """Puts what was stored of this place into the unfinished checkpoint `name`; returns the manifest's entries for
        it. None where nothing was stored, or it is gone, or lies where there are no hard links."""
        if self._stored is None or place != self._place:
            return {}
        source, stored, entries = self._stored
        return {file: entry for file, entry in entries.items() if store.link(name, file, source, stored)}

    def keep(self, place: object, store: CheckpointStore, name: str, entries: Mapping[str, _Entry]) -> None:
        """Notes a stored checkpoint of this place, with the manifest's entries."""
        self._place, self._stored = place, (store, name, {file: entries[file] for file in self._files})
