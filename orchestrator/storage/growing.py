"""A file that grows on an object store, which cannot append: kept as parts until they are joined."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, NamedTuple

PARTS = ".parts"
"""Folder with a folder of parts for each file."""
_MAX_PARTS = 32
"""Number of parts from which the last ones are merged."""
_NAME = re.compile(r"([0-9]{15})-([0-9]{15})")


class _Part(NamedTuple):
    """An object with the bytes from `start` to `end` of the file."""

    start: int
    end: int
    path: str


class GrowingFile:
    """A file in a Storage as parts, each named by its range of bytes. It has one writer and any number of readers.

    An append takes a few requests, however long the file is. Merging keeps the parts few, and each merged part is at
    least twice as long, so a byte is sent again only when the file doubles. A kill may leave parts whose bytes are in
    other parts too; they are ignored.
    """

    def __init__(self, storage: Any, name: str) -> None:
        self._storage, self._name, self._folder = storage, name, f"{PARTS}/{name}"
        self._end = 0
        """End of this writer's last part, which may not be listed yet."""

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        parts = self._parts(with_joined=not self._end)
        start = end = max([self._end, *(part.end for part in parts)])
        merged: list[_Part] = []
        while (
            len(parts) >= _MAX_PARTS and parts[-1].end == start and start - parts[-1].start <= end - start + len(data)
        ):
            merged.insert(0, parts.pop())
            start = merged[0].start
        whole = b"".join([*self._storage.each(self._read, merged), data])
        self._end = start + len(whole)
        self._storage.write(f"{self._folder}/{start:015d}-{self._end:015d}", whole)
        self._storage.each(self._storage.delete, [part.path for part in merged])

    def read(self, start: int = 0) -> bytes:
        """Return the bytes from `start` on; raises FileNotFoundError."""
        parts = self._parts()
        if not parts:
            raise FileNotFoundError(f"{self._storage}/{self._name}")
        wanted = [part for part in parts if part.end > start]
        pieces, end = [], start
        for part, data in zip(wanted, self._storage.each(self._read, wanted), strict=True):
            # A part that is missing, or not listed yet, leaves a gap.
            pieces += [b"\n" * (part.start - end), data[max(0, end - part.start) :]]
            end = part.end
        return b"".join(pieces)

    def join(self) -> None:
        """Replace the parts by one object, unless one is missing. More may be appended afterwards."""
        parts = self._parts()
        if any(part.path != self._name for part in parts) and all(
            part.end >= later.start for part, later in pairwise(parts)
        ):
            self._storage.write(self._name, self.read())
            self._storage.delete(self._folder)

    def _parts(self, *, with_joined: bool = True) -> list[_Part]:
        """Return the parts in order, without those whose bytes are in others."""
        joined = self._storage.state(self._name) if with_joined else None
        parts = [_Part(0, joined.size_bytes, self._name)] if joined else []
        for name in self._storage.names(self._folder):
            if match := _NAME.fullmatch(name):
                parts.append(_Part(int(match[1]), int(match[2]), f"{self._folder}/{name}"))
        needed: list[_Part] = []
        for part in sorted(parts, key=lambda part: (part.start, -part.end)):
            if not needed or part.end > needed[-1].end:
                needed.append(part)
        return needed

    def _read(self, part: _Part) -> bytes:
        data: bytes = self._storage.read(part.path)
        return data
