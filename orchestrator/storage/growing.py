"""A file that grows on an object store, where nothing can be appended to: as parts, until they are joined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

PARTS = ".parts"
"""Where the parts lie, in a folder for each file."""
_MOST = 32
"""With so many parts the last ones become one."""
_NAME = re.compile(r"([0-9]{15})-([0-9]{15})")


class _Part(NamedTuple):
    """An object that holds some of the file's bytes."""

    start: int
    end: int
    path: str


class Objects(Protocol):
    """Where the parts are kept, as Storage does."""

    def state(self, name: str) -> Any: ...

    def names(self, folder: str = "") -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: bytes) -> None: ...

    def delete(self, name: str) -> None: ...

    def each(self, call: Callable[[Any], Any], things: Iterable[Any]) -> list[Any]: ...


class GrowingFile:
    """A file in parts, each named by the bytes that it holds. Of one writer at a time, and any readers.

    What is added costs a few requests, however long the file is. Now and then its last parts become one, at least twice
    as long as each of them, so that there are few of them and a byte is sent again only as the file doubles. What other
    parts hold too, as a kill can leave it, is passed over.
    """

    def __init__(self, storage: Objects, name: str) -> None:
        self._storage, self._name, self._folder = storage, name, f"{PARTS}/{name}"
        self._end = 0
        """How far this writer has come, whether it is listed yet or not."""

    def append(self, data: bytes) -> None:
        """Adds bytes to its end."""
        parts = self._parts(with_joined=not self._end)
        start = end = max([self._end, *(part.end for part in parts)])
        absorbed: list[_Part] = []
        while len(parts) >= _MOST and parts[-1].end == start and start - parts[-1].start <= end - start + len(data):
            absorbed.insert(0, parts.pop())
            start = absorbed[0].start
        whole = b"".join([*self._storage.each(self._read, absorbed), data])
        self._end = start + len(whole)
        self._storage.write(f"{self._folder}/{start:015d}-{self._end:015d}", whole)
        self._storage.each(self._storage.delete, [part.path for part in absorbed])

    def read(self, start: int = 0) -> bytes:
        """Its bytes, from a place on; raises FileNotFoundError where there is none."""
        parts = self._parts()
        if not parts:
            raise FileNotFoundError(f"{self._storage}/{self._name}")
        wanted = [part for part in parts if part.end > start]
        found, place = [], start
        for part, data in zip(wanted, self._storage.each(self._read, wanted), strict=True):
            # Where a part is missing, or not listed yet, the others keep their places.
            found += [b"\n" * (part.start - place), data[max(0, place - part.start) :]]
            place = part.end
        return b"".join(found)

    def join(self) -> None:
        """Makes one object of it, unless a part is missing; more may be added later."""
        parts = self._parts()
        if any(part.path != self._name for part in parts) and all(
            one.end >= later.start for one, later in pairwise(parts)
        ):
            self._storage.write(self._name, self.read())
            self._storage.delete(self._folder)

    def _parts(self, *, with_joined: bool = True) -> list[_Part]:
        """The parts that hold the file, in their order: none twice, and none that holds what others do. A writer that
        knows where it ended need not ask for what was joined."""
        joined = self._storage.state(self._name) if with_joined else None
        found = [_Part(0, joined.size_bytes, self._name)] if joined else []
        for name in self._storage.names(self._folder):
            if told := _NAME.fullmatch(name):
                found.append(_Part(int(told[1]), int(told[2]), f"{self._folder}/{name}"))
        live: list[_Part] = []
        for part in sorted(found, key=lambda one: (one.start, -one.end)):
            if not live or part.end > live[-1].end:
                live.append(part)
        return live

    def _read(self, part: _Part) -> bytes:
        return self._storage.read(part.path)
