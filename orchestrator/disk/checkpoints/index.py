"""The index of a run's checkpoints: their owners and labels. Does not import torch."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from orchestrator.disk.checkpoints.deletion import delete_checkpoint
from orchestrator.disk.checkpoints.manifest import MANIFEST, check_inside
from orchestrator.storage import Storage
from orchestrator.storage.json_files import read_json, write_json
from orchestrator.storage.omissions import warn_once
from orchestrator.storage.validation import validate

INDEX = "index.json"


@dataclass(frozen=True)
class _IndexEntries:
    """Content of the index file."""

    owners: Mapping[str, Sequence[str]]
    """Checkpoints that each owner keeps."""
    labels: Mapping[str, str]
    """Checkpoint of each label."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Metric of a label such as `best`."""


class Index:
    """The index of the checkpoints in a storage; only the master's changes are written.

    A checkpoint that loses its last owner is deleted.
    """

    def __init__(self, storage: Storage, is_master: bool) -> None:
        self._storage = storage
        self._is_master = is_master
        self._edited: dict[str, Any] | None = None
        """The index within `edit`, with changes that are not written yet."""
        self._run_deletion: Callable[[Callable[[], None]], object] = lambda delete: delete()

    def postpone_deletions(self, run: Callable[[Callable[[], None]], object]) -> None:
        """Let `run` call the deletions of checkpoints, now or later."""
        self._run_deletion = run

    def read(self) -> dict[str, Any]:
        """Return the index with unwritten changes; raises DamagedFile."""
        return read_index(self._storage) if self._edited is None else self._edited

    @contextmanager
    def edit(self) -> Iterator[dict[str, Any]]:
        """Yield the index for changes. The outermost of nested blocks writes it and deletes
        released checkpoints."""
        if not self._is_master:
            yield _make_empty_index()
            return
        if self._edited is not None:
            yield self._edited
            return

        before = self.read()
        index = deepcopy(before)
        self._edited = index
        try:
            yield index
        finally:
            # Changes made before an error are valid: checkpoints that they name are complete.
            self._edited = None
            self._write_changes(before, index)

    def _write_changes(self, before: dict[str, Any], index: dict[str, Any]) -> None:
        """Write the index if it differs, and delete the checkpoints that have lost their last
        owner."""
        released = _list_owned(before) - _list_owned(index)
        labels = index["labels"].items()
        index["labels"] = {label: name for label, name in labels if name not in released}
        if index != before:
            write_json(self._storage, INDEX, index)
        for name in sorted(released):
            self._run_deletion(partial(delete_checkpoint, self._storage, name))

    def reset(self, newest: str, retained: Collection[str], *, keeps_labels: bool) -> None:
        """Write the index of a run that goes on from an earlier checkpoint, and delete none.

        Args:
            newest: The checkpoint from which it goes on; the run owns it.
            retained: The checkpoints that stay.
            keeps_labels: Whether their labels stay too.
        """
        index = self.read()
        labels = index["labels"].items() if keeps_labels else ()
        index["labels"] = {label: name for label, name in labels if name in retained}
        for owner, names in index["owners"].items():
            index["owners"][owner] = [name for name in names if name in retained]
        index["owners"]["run"] = [newest]
        # Not by `edit`, which deletes a checkpoint without owner, even if only its manifest is
        # lost.
        write_json(self._storage, INDEX, index)


def read_index(storage: Storage) -> dict[str, Any]:
    """Read the index of the checkpoints in a storage; raises DamagedFile."""
    advice = "Delete it: checkpoints keep their names, and lose labels such as best"
    try:
        return read_json(storage, INDEX, check_index, advice)
    except FileNotFoundError:
        return _make_empty_index()


def check_index(index: Any) -> dict[str, Any]:
    """Validate and return an index; raises ValueError."""
    entries = validate(index, _IndexEntries)
    for name in {*entries.labels.values()}.union(*entries.owners.values()):
        check_inside(name)
    return dict(index)


def _make_empty_index() -> dict[str, Any]:
    return {"owners": {}, "labels": {}}


def _list_owned(index: Mapping[str, Any]) -> set[str]:
    """Return the names of the checkpoints that have an owner."""
    return set().union(*index["owners"].values())


def warn_lost_index(storage: Storage) -> None:
    """Warn if there are checkpoints but no index."""
    if storage.exists(INDEX):
        return
    if any(storage.exists(f"{name}/{MANIFEST}") for name in storage.names()):
        warn_once(f"{storage / INDEX} is missing: no checkpoint is known as the best")
