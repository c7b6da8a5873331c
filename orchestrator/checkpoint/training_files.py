"""Files of a shared training run: the first run that saves writes them, the other runs hard-link them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.checkpoint.store import CheckpointStore

_Entry = dict[str, Any]


class TrainingFiles:
    """The newest checkpoint with the training's files. Used in workers; only the master acts.

    A hard link is as good as a copy, because checkpoint files are never modified.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files = [f"{file}.pt" for file in files]
        self._position: object = None
        self._stored: tuple[CheckpointStore, str, Mapping[str, _Entry]] | None = None

    def link(self, position: object, store: CheckpointStore, name: str) -> dict[str, _Entry]:
        """Link the files saved at a position into the unfinished checkpoint `name`; return their entries."""
        if self._stored is None or position != self._position:
            return {}
        source, stored, entries = self._stored
        return {file: entry for file, entry in entries.items() if store.link(name, file, source, stored)}

    def keep(self, position: object, store: CheckpointStore, name: str, entries: Mapping[str, _Entry]) -> None:
        """Remember a stored checkpoint at a position, with the entries of its files."""
        self._position, self._stored = position, (store, name, {file: entries[file] for file in self._files})
