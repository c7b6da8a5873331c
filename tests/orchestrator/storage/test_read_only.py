"""Storages that are only read, beside storages of the same place that are written."""

from collections.abc import Callable

import pytest

from orchestrator.errors import StorageError
from orchestrator.storage import Storage
from orchestrator.storage.read_only import ReadOnlyStorage

WRITES: dict[str, Callable[[Storage], object]] = {
    "write": lambda storage: storage.write("a", "b"),
    "append": lambda storage: storage.append("a", "b"),
    "delete": lambda storage: storage.delete("a"),
    "rename": lambda storage: storage.rename("a", "b"),
    "link": lambda storage: storage.link("b", storage, "a"),
    "open_stream": lambda storage: storage.open_stream("b", b""),
}


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written(storage: Storage, name: str) -> None:
    (storage / "inside").write("a", "text")
    read_only = ReadOnlyStorage(storage.location)
    inside = read_only / "inside"
    for place in (inside, (inside / "more").parent, read_only.at(inside.location)):
        assert place.read("a") == b"text"
        with pytest.raises(StorageError, match="only read"):
            WRITES[name](place)
    assert [*storage.tree()] == ["inside/a"]
    assert (storage / "inside").read("a") == b"text"
