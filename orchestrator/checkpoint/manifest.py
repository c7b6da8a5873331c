"""The manifest: what a checkpoint says of itself. Needs no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from orchestrator.checkpoint.position import Position
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import checked, read_json

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileEntry:
    """What was written of one file."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class _Manifest:
    """What every manifest holds beside its position."""

    name: str
    position: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    world_size: int
    metrics: Mapping[str, Any]
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    optimizers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is said of each of several optimizers, by name."""
    main_metric: str = ""
    evaluations: Mapping[str, str] = field(default_factory=dict)
    microbatches: int = 1
    """Pieces that a batch was gone through in."""


def read_manifest(storage: Storage, name: str) -> dict[str, Any]:
    """The manifest of a checkpoint in a storage; raises FileNotFoundError where there is none, DamagedFile."""
    return read_json(
        storage, f"{name}/{MANIFEST}", checked_manifest, "This checkpoint is left out; older ones may be whole"
    )


def damage(storage: Storage, name: str, file: str, entry: Mapping[str, Any]) -> str | None:
    """What is wrong with a file of a checkpoint, which is read in pieces, beside the manifest's entry for it; None
    where nothing is."""
    size, found = 0, hashlib.sha256()
    try:
        for piece in storage.pieces(f"{name}/{file}"):
            size += len(piece)
            found.update(piece)
    except FileNotFoundError:
        return f"{file} is missing"
    whole = found.hexdigest() == entry["sha256"]
    return None if whole else f"{file} is damaged ({size} bytes, {entry['bytes']} were written)"


def checked_manifest(manifest: Any) -> dict[str, Any]:
    """Return a manifest as it was read; raises ValueError for what is none."""
    checkpoint: _Manifest = checked(manifest, _Manifest)
    if not checkpoint.files:
        raise ValueError("it names no files")
    if checkpoint.world_size < 1:
        raise ValueError(f"`world_size` is {checkpoint.world_size}")
    for file in checkpoint.files:
        refuse_outside(file)
    position_in(manifest)
    return dict(manifest)


def position_in(manifest: Mapping[str, Any]) -> Position:
    """How far the run had come; raises ValueError where the manifest does not say so."""
    return Position.read(manifest["position"])


def refuse_outside(name: str) -> None:
    """Raises ValueError for a path that leads out of the folder it is read in."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"it names {name!r}, which lies elsewhere")
