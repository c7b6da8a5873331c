"""Files of a shared training: the first run that saves writes them, and the other runs link them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.checkpoint.store import CheckpointStore

_Entry = dict[str, Any]


class TrainingFiles:
    """The newest checkpoint with the training's files, in each worker process; only the master acts.

    A hard link is as good as a copy, since files of checkpoints are never changed in place.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files = [f"{file}.pt" for file in files]
        self._place: object = None
        self._stored: tuple[CheckpointStore, str, Mapping[str, _Entry]] | None = None

    def link(self, place: object, store: CheckpointStore, name: str) -> dict[str, _Entry]:
        """Link the files of this place into the unfinished checkpoint `name`; return the entries of linked files."""
        if self._stored is None or place != self._place:
            return {}
        source, stored, entries = self._stored
        return {file: entry for file, entry in entries.items() if store.link(name, file, source, stored)}

    def keep(self, place: object, store: CheckpointStore, name: str, entries: Mapping[str, _Entry]) -> None:
        """Remember a stored checkpoint of this place, with its entries."""
        self._place, self._stored = place, (store, name, {file: entries[file] for file in self._files})
