"""The index: which of a run's checkpoints are kept for whom, and what they are called beside their names. Needs no
torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from orchestrator.checkpoint.manifest import refuse_outside
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import checked, read_json, write_json

INDEX = "index.json"


@dataclass(frozen=True)
class _Stored:
    """Which checkpoints each owner wants kept, and which one each label is of."""

    owners: Mapping[str, Sequence[str]]
    labels: Mapping[str, str]
    metrics: Mapping[str, str] = field(default_factory=dict)
    """The metric by which a label is given."""


class Index:
    """The index of the checkpoints in a storage. Of several ranks only the master's changes count.

    A checkpoint that some owner wanted and nobody wants any more is deleted; `defer` does that, which nobody has to
    wait for.
    """

    def __init__(self, storage: Storage, master: bool) -> None:
        self._storage, self._master = storage, master
        self._changed: dict[str, Any] = {}
        self.defer: Callable[[Callable[[], None]], object] = lambda call: call()

    def read(self) -> dict[str, Any]:
        """Owners and labels as stored, or as they will be; raises DamagedFile."""
        return self._changed or read_index(self._storage)

    def write(self, index: Mapping[str, Any]) -> None:
        write_json(self._storage, INDEX, index)

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """The index, to be changed. It is written once, as the outermost of these blocks ends, and then what was given
        up is deleted."""
        if self._changed or not self._master:
            yield self._changed or {"owners": {}, "labels": {}}
            return
        before = self.read()
        self._changed = index = deepcopy(before)
        try:
            yield index
        finally:
            self._changed = {}
            given_up = _owned(before) - _owned(index)
            index["labels"] = {label: name for label, name in index["labels"].items() if name not in given_up}
            if index != before:
                self.write(index)
            for name in sorted(given_up):
                self.defer(partial(self._storage.delete, name))


def read_index(storage: Storage) -> dict[str, Any]:
    """The index of the checkpoints in a storage; raises DamagedFile."""
    advice = "Delete it: checkpoints keep their names then, and lose labels such as best"
    try:
        return read_json(storage, INDEX, checked_index, advice)
    except FileNotFoundError:
        return {"owners": {}, "labels": {}}


def checked_index(index: Any) -> dict[str, Any]:
    """An index as it was read; raises ValueError for what is none."""
    kept: _Stored = checked(index, _Stored)
    for name in {*kept.labels.values(), *(name for names in kept.owners.values() for name in names)}:
        refuse_outside(name)
    return dict(index)


def _owned(index: Mapping[str, Any]) -> set[str]:
    return {name for names in index["owners"].values() for name in names}
