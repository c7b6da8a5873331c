"""The newest files of the training, for the checkpoints of several runs that share it."""

from collections.abc import Iterable, Mapping
from typing import Any

from hooks.position import Position
from orchestrator.disk.checkpoints.store import CheckpointStore


class TrainingFiles:
    """The newest checkpoint with the training's files. Used in workers; only the master acts.

    A hard link is as good as a copy, because checkpoint files are never modified.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files = [f"{file}.pt" for file in files]
        self._position: Position | None = None
        self._stored: tuple[CheckpointStore, str, Mapping[str, dict[str, Any]]] | None = None

    def link(
        self, position: Position, store: CheckpointStore, name: str
    ) -> dict[str, dict[str, Any]]:
        """Link the files saved at a position into the unfinished checkpoint `name`; return their
        entries."""
        if self._stored is None or position != self._position:
            return {}
        source, stored, entries = self._stored
        folder = store.get_staging_folder(name)
        linked = {}
        for file, entry in entries.items():
            if store.storage.link(f"{folder}/{file}", source.storage, f"{stored}/{file}"):
                linked[file] = entry
        return linked

    def keep(
        self,
        position: Position,
        store: CheckpointStore,
        name: str,
        entries: Mapping[str, dict[str, Any]],
    ) -> None:
        """Remember a stored checkpoint at a position, with the entries of its files."""
        self._position = position
        self._stored = (store, name, {file: entries[file] for file in self._files})
