"""Whether a checkpoint's files are what was written, by their hashes or by their sizes alone; among ranks each looks at
a part of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from orchestrator.checkpoint.manifest import damage
from orchestrator.storage import FileState, Storage

Entries = Mapping[str, Mapping[str, Any]]
"""Files by name, each with what a manifest says of it: `sha256` and `bytes`."""


class Ranks(Protocol):
    """Those that resume together."""

    rank: int
    world_size: int

    def gather(self, value: Any) -> list[Any]: ...

    def broadcast(self, make: Callable[[], Any]) -> Any: ...


class Alone:
    """A process that resumes by itself."""

    rank, world_size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, make: Callable[[], Any]) -> Any:
        return make()


def damage_in(storage: Storage, folder: str, entries: Entries, *, hashed: bool = True) -> str | None:
    """What is wrong with files of a folder, of the first that is missing or damaged: by its hash, for which it is read
    in pieces, or by its size alone."""
    sizes = {} if hashed else storage.tree(folder)

    def wrong(file: str) -> str | None:
        entry = entries[file]
        return (
            damage(storage, folder, file, entry)
            if hashed
            else of_another_size(storage, folder, file, entry, sizes.get(file))
        )

    reason = next(filter(None, storage.each(wrong, entries)), None)
    return reason and f"checkpoint {storage}/{folder}: {reason}"


def damage_among(ranks: Ranks, storage: Storage, folder: str, entries: Entries, *, hashed: bool) -> str | None:
    """What is wrong with a checkpoint, agreed over ranks: each looks at its own files, and at some of those that all
    share."""
    own = {
        file: entry
        for number, (file, entry) in enumerate(entries.items())
        if _reader(file, number) % ranks.world_size == ranks.rank
    }
    return next(filter(None, ranks.gather(damage_in(storage, folder, own, hashed=hashed))), None)


def of_another_size(
    storage: Storage, folder: str, file: str, entry: Mapping[str, Any], state: FileState | None = None
) -> str | None:
    """That a file is missing or of another size; one that is not listed, or not yet, is asked for by itself."""
    state = state or storage.state(f"{folder}/{file}")
    if state is None:
        return f"{file} is missing"
    return (
        None
        if state.size_bytes == entry["bytes"]
        else f"{file} is damaged ({state.size_bytes} bytes, {entry['bytes']} were written)"
    )


def _reader(file: str, number: int) -> int:
    """Which rank looks whether a file is whole: whose it is, or of those that all share one after the other."""
    own = re.fullmatch(r"(?:rank|shards)-([0-9]+)\.pt", file)
    return int(own[1]) if own else number
