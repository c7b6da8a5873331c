"""The manifest of a checkpoint: the training progress, and the size and sha256 of each file. Needs
no torch."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Annotated, Any, Protocol

from annotated_types import Ge, MinLen

from hooks.optimizer_name import OptimizerName
from hooks.position import Position
from orchestrator.storage import Storage
from orchestrator.storage.json_files import read_json
from orchestrator.storage.validation import validate
from orchestrator.units import format_count

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
    """Entries of every manifest."""

    name: str
    position: Position
    files: Annotated[Mapping[str, FileEntry], MinLen(1)]
    world_size: Annotated[int, Ge(1)]
    metrics: Mapping[str, Any]
    main_metric: str
    """The first metric that the experiment monitors; empty if it monitors none."""
    evaluations: Mapping[str, str]
    """Hook that provided the weights of each evaluation, by label; empty for the raw weights."""
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    optimizers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Optimizer entries by name, if there are several."""
    media: Annotated[int, Ge(0)] = 0
    """Number of lines in the index of the run's images, figures and tables."""
    microbatches: int = 1
    copied_from: str | None = None
    """Path of the checkpoint of another run of which it is a copy."""


class RankGroup(Protocol):
    """Process group whose ranks resume together."""

    rank: int
    world_size: int

    def gather(self, value: Any) -> list[Any]: ...

    def broadcast(self, make: Callable[[], Any]) -> Any: ...


def read_manifest(storage: Storage, name: str) -> dict[str, Any]:
    """Read the manifest of a checkpoint; raises FileNotFoundError or DamagedFile."""
    advice = "This checkpoint is skipped; older ones may be intact"
    return read_json(storage, f"{name}/{MANIFEST}", check_manifest, advice)


def check_manifest(manifest: Any) -> dict[str, Any]:
    """Validate and return a manifest; raises ValueError."""
    entries = validate(manifest, _Manifest)
    for file in entries.files:
        check_inside(file)
    if "" not in entries.evaluations:
        raise ValueError("its evaluations have no entry with an empty label")
    parse_position(manifest["position"])
    return dict(manifest)


def parse_position(entries: Any) -> Position:
    """Parse the position in a manifest or an `attempt.json`; raises ValueError if an entry is
    invalid or missing."""
    position = validate(entries, Position, "position")
    if missing := [field.name for field in fields(Position) if field.name not in entries]:
        raise ValueError(f"its position has no `{missing[0]}`")
    return position


def list_optimizers(manifest: Mapping[str, Any]) -> Mapping[OptimizerName, Mapping[str, Any]]:
    """Return what a manifest says of each optimizer, by name."""
    optimizers: Mapping[OptimizerName, Mapping[str, Any]] = manifest.get("optimizers", {})
    if not optimizers:
        return {None: manifest}
    return optimizers


def check_inside(name: str) -> None:
    """Raise ValueError for a path outside its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"it names {name!r}, which lies outside of its folder")


def find_damage(
    storage: Storage,
    folder: str,
    entries: Entries,
    group: RankGroup | None = None,
    *,
    check_hashes: bool = True,
) -> str | None:
    """Return the first problem of a checkpoint's files, or None; if not `check_hashes`, compare
    only sizes.

    With `group` it is collective: each rank checks its own files and a share of the others.
    """
    if group:
        share = _choose_share(entries, group)
        damages = group.gather(find_damage(storage, folder, share, check_hashes=check_hashes))
        return next(filter(None, damages), None)

    if check_hashes:
        reasons = storage.map(
            lambda file: check_file(storage, folder, file, entries[file]), entries
        )
    else:
        states = storage.tree(folder)
        sizes = {file: {"bytes": state.size_bytes} for file, state in states.items()}
        reasons = [
            describe_difference(file, entry, sizes.get(file)) for file, entry in entries.items()
        ]
    reason = next(filter(None, reasons), None)
    return None if reason is None else f"checkpoint {storage}/{folder}: {reason}"


def check_file(storage: Storage, folder: str, file: str, entry: Mapping[str, Any]) -> str | None:
    """Return the problem of a checkpoint's file, or None."""
    size = 0
    sha256 = hashlib.sha256()
    try:
        for piece in storage.read_chunks(f"{folder}/{file}"):
            size += len(piece)
            sha256.update(piece)
    except FileNotFoundError:
        return describe_difference(file, entry, None)
    return describe_difference(file, entry, {"bytes": size, "sha256": sha256.hexdigest()})


def describe_difference(
    file: str, entry: Mapping[str, Any], measured: Mapping[str, Any] | None
) -> str | None:
    """Return how a file, or None for a missing one, differs from its entry; None if it does not."""
    if measured is None:
        return f"{file} is missing"
    if measured["bytes"] != entry["bytes"]:
        size = format_count(measured["bytes"], "byte")
        return f"{file} is damaged: it has {size}, and {entry['bytes']:,} were written"
    if measured.get("sha256", entry["sha256"]) != entry["sha256"]:
        return f"{file} is damaged: its sha256 differs from the manifest's"
    return None


def _choose_share(entries: Entries, group: RankGroup) -> Entries:
    """Return the files that this rank checks: its own, and a share of the files of all ranks."""
    share = {}
    for number, (file, entry) in enumerate(entries.items()):
        match = re.fullmatch(r"(?:rank|shards)-([0-9]+)\.pt", file)
        rank = int(match[1]) if match else number
        if rank % group.world_size == group.rank:
            share[file] = entry
    return share
