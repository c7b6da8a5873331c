"""A file that grows on an object store; files in memory stand for one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from orchestrator.storage import Storage
from orchestrator.storage.growing import PARTS


class Store:
    """A file system that counts what is written, and that a kill ends at one of its operations."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self.calls = self.written = 0
        self.last = float("inf")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls > self.last:
                raise KeyboardInterrupt
            return getattr(self._filesystem, name)(*arguments)

        return call


@pytest.fixture
def place() -> str:
    return f"memory://grows-{uuid.uuid4().hex}"


def opened(place: str) -> tuple[Storage, Store]:
    """The place as a process that begins now has it."""
    storage = Storage(place)
    storage._remote.filesystem = store = Store(storage._remote.filesystem)
    return storage, store


def lines(count: int) -> list[str]:
    return [f"{number}{'x' * (number * 37 % 50)}\n" for number in range(count)]


def content(storage: Storage) -> str:
    try:
        return storage.read_appended("log.txt").decode()
    except FileNotFoundError:
        return ""


def test_what_is_added_costs_the_same_however_long_the_file_is(place: str) -> None:
    storage, store = opened(place)
    sent, calls = [], []
    write = storage.write
    storage.write = lambda name, data: (sent.append(len(data)), write(name, data))[1]  # type: ignore[assignment, func-returns-value]
    for line in lines(800):
        before = store.calls
        storage.append("log.txt", line)
        calls.append(store.calls - before)
    text = "".join(lines(800))
    assert storage.read_appended("log.txt").decode() == text
    assert storage.read_appended("log.txt", 12_345).decode() == text[12_345:]
    assert sorted(calls)[400] <= 3
    assert sum(calls[400:]) < 1.3 * sum(calls[:400])
    assert len(storage.names(f"{PARTS}/log.txt")) < 50
    assert sum(sent) < 6 * len(text)
    storage.join("log.txt")
    assert (storage.read("log.txt").decode(), storage.names(f"{PARTS}/log.txt")) == (text, [])
    storage.append("log.txt", "more")
    assert opened(place)[0].read_appended("log.txt").decode() == text + "more"


def test_a_kill_at_any_operation_loses_and_doubles_nothing(place: str) -> None:
    """Killed at each operation in turn, and begun again by a process that knows nothing."""
    said = ""
    operations = 0
    for number, line in enumerate(lines(120)):
        storage, store = opened(place)
        store.last = number % 6 if number % 3 else number % 70
        try:
            storage.append("log.txt", line)
            if number % 40 == 39:
                store.last = number % 13
                storage.join("log.txt")
        except KeyboardInterrupt:
            operations += 1
        found = content(opened(place)[0])
        assert found in (said, said + line)
        said = found
    assert operations > 30
    storage, _ = opened(place)
    storage.join("log.txt")
    assert storage.read("log.txt").decode() == said


@pytest.mark.parametrize("last", range(1, 12))
def test_a_join_that_is_killed_is_taken_up(place: str, last: int) -> None:
    storage, store = opened(place)
    for line in lines(10):
        storage.append("log.txt", line)
    store.calls, store.last = 0, last
    with suppress(KeyboardInterrupt):
        storage.join("log.txt")
    later, _ = opened(place)
    later.append("log.txt", "after\n")
    later.join("log.txt")
    assert later.read("log.txt").decode() == "".join([*lines(10), "after\n"])


def test_parts_that_are_listed_late_keep_their_places(place: str) -> None:
    storage, _ = opened(place)
    for line in ("one\n", "two\n", "three\n"):
        storage.append("log.txt", line)
    late = storage.names(f"{PARTS}/log.txt")[1]
    reader, writer = opened(place)[0], storage
    for one in (reader, writer):
        names = one.names
        one.names = lambda folder, names=names: [name for name in names(folder) if name != late]  # type: ignore[assignment, misc]
    assert reader.read_appended("log.txt") == b"one\n\n\n\n\nthree\n"
    assert reader.read_appended("log.txt", 8) == b"three\n"
    reader.join("log.txt")
    assert not reader.exists("log.txt"), "it is not joined without the part"
    writer.append("log.txt", "four\n")
    assert opened(place)[0].read_appended("log.txt") == b"one\ntwo\nthree\nfour\n"
    last = Storage(place)
    last.names = lambda folder: []  # type: ignore[assignment]
    writer.names = last.names
    writer.append("log.txt", "five\n")
    assert opened(place)[0].read_appended("log.txt") == b"one\ntwo\nthree\nfour\nfive\n"
