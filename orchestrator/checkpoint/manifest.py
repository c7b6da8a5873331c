"""The manifest of a checkpoint: its position, and the size and sha256 of each file. Needs no torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from orchestrator.checkpoint.position import Position
from orchestrator.storage import FileState, Storage
from orchestrator.storage.stored_data import read_json, validate

MANIFEST = "manifest.json"

Entries = Mapping[str, Mapping[str, Any]]
"""Entries of a manifest by file: `sha256` and `bytes`."""


@dataclass(frozen=True)
class FileEntry:
    """A file's entry in the manifest."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class _Manifest:
    """Entries of every manifest beside its position."""

    name: str
    position: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    world_size: int
    metrics: Mapping[str, Any]
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    optimizers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Entries of several optimizers by name."""
    main_metric: str = ""
    evaluations: Mapping[str, str] = field(default_factory=dict)
    microbatches: int = 1


class Ranks(Protocol):
    """Ranks that resume together."""

    rank: int
    world_size: int

    def gather(self, value: Any) -> list[Any]: ...

    def broadcast(self, make: Callable[[], Any]) -> Any: ...


class SingleRank:
    """A process that resumes alone."""

    rank, world_size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, make: Callable[[], Any]) -> Any:
        return make()


def read_manifest(storage: Storage, name: str) -> dict[str, Any]:
    """Read the manifest of a checkpoint; raises FileNotFoundError or DamagedFile."""
    advice = "This checkpoint is skipped; older ones may be whole"
    return read_json(storage, f"{name}/{MANIFEST}", check_manifest, advice)


def check_manifest(manifest: Any) -> dict[str, Any]:
    """Return a manifest that is valid; raises ValueError otherwise."""
    checkpoint: _Manifest = validate(manifest, _Manifest)
    if not checkpoint.files:
        raise ValueError("it names no files")
    if checkpoint.world_size < 1:
        raise ValueError(f"`world_size` is {checkpoint.world_size}")
    for file in checkpoint.files:
        check_inside(file)
    position_in(manifest)
    return dict(manifest)


def position_in(manifest: Mapping[str, Any]) -> Position:
    """Return the position in a manifest; raises ValueError if it is invalid."""
    return Position.read(manifest["position"])


def check_inside(name: str) -> None:
    """Raise ValueError for a path that leads out of its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"it names {name!r}, which lies outside of its folder")


def find_damage(storage: Storage, folder: str, entries: Entries, *, hashed: bool = True) -> str | None:
    """Return the first problem of a checkpoint's files, or None. Files are read and hashed, or only their sizes
    compared."""
    listed = {} if hashed else storage.tree(folder)

    def check(file: str) -> str | None:
        return check_file(storage, folder, file, entries[file], hashed=hashed, state=listed.get(file))

    reason = next(filter(None, storage.each(check, entries)), None)
    return reason and f"checkpoint {storage}/{folder}: {reason}"


def find_damage_together(ranks: Ranks, storage: Storage, folder: str, entries: Entries, *, hashed: bool) -> str | None:
    """Return the first problem of a checkpoint's files, agreed on by all ranks. Each checks its own files, and a part
    of the shared ones."""
    own = {
        file: entry
        for number, (file, entry) in enumerate(entries.items())
        if _owner(file, number) % ranks.world_size == ranks.rank
    }
    return next(filter(None, ranks.gather(find_damage(storage, folder, own, hashed=hashed))), None)


def check_file(
    storage: Storage,
    folder: str,
    file: str,
    entry: Mapping[str, Any],
    *,
    hashed: bool = True,
    state: FileState | None = None,
) -> str | None:
    """Return what is wrong with a file of a checkpoint, or None. `state` is its state, where that is known."""
    if hashed:
        size, sha256 = 0, hashlib.sha256()
        try:
            for piece in storage.pieces(f"{folder}/{file}"):
                size += len(piece)
                sha256.update(piece)
        except FileNotFoundError:
            return f"{file} is missing"
        is_whole = sha256.hexdigest() == entry["sha256"]
    else:
        # A store may list a new file late.
        state = state or storage.state(f"{folder}/{file}")
        if state is None:
            return f"{file} is missing"
        size, is_whole = state.size_bytes, state.size_bytes == entry["bytes"]
    return None if is_whole else f"{file} is damaged ({size} bytes, {entry['bytes']} were written)"


def _owner(file: str, number: int) -> int:
    """Return the rank that checks a file; shared files go around."""
    own = re.fullmatch(r"(?:rank|shards)-([0-9]+)\.pt", file)
    return int(own[1]) if own else number
