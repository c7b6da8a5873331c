"""The stored checkpoints of a run, by their manifests. Does not import torch."""

from functools import partial
from typing import Any

from hooks.position import Position
from orchestrator.disk.checkpoints.manifest import MANIFEST, parse_position, read_manifest
from orchestrator.errors import CheckpointError, DamagedFile, NewerFormat
from orchestrator.storage import Storage
from orchestrator.storage.omissions import warn_once


def read_checkpoints(
    storage: Storage,
) -> tuple[dict[str, dict[str, Any]], dict[str, CheckpointError]]:
    """Return the manifests of the stored checkpoints, oldest first, and the errors of those with
    damaged manifests."""
    names = [name for name in storage.names() if not name.startswith(".")]
    results = storage.map(partial(read_manifest_or_error, storage), names)

    manifests = {}
    positions = {}
    errors = {}
    for name, manifest in zip(names, results, strict=True):
        if isinstance(manifest, CheckpointError):
            errors[name] = manifest
        elif manifest is not None:
            manifests[name] = manifest
            positions[name] = parse_position(manifest["position"])
    return {name: manifests[name] for name in sorted(positions, key=positions.__getitem__)}, errors


def read_position(storage: Storage, name: str) -> Position | None:
    """Return the position of a checkpoint; None if it is missing, or with a warning if it is
    damaged."""
    manifest = read_manifest_or_error(storage, name)
    if isinstance(manifest, CheckpointError):
        warn_once(str(manifest))
        return None
    return parse_position(manifest["position"]) if manifest else None


def read_manifest_or_error(storage: Storage, name: str) -> dict[str, Any] | CheckpointError | None:
    """Return a checkpoint's manifest, or its error if it is damaged; None if there is no
    checkpoint.

    Raises NewerFormat: training that went on from an older checkpoint instead would delete this
    one.
    """
    try:
        return read_manifest(storage, name)
    except NewerFormat:
        raise
    except DamagedFile as error:
        return CheckpointError(str(error))
    except FileNotFoundError:
        # On an object store, a missing manifest may mean an unfinished save: it is written last.
        if storage.local and storage.exists(f"{name}/model.pt"):
            return CheckpointError(
                f"the checkpoint {storage / name} is damaged: its {MANIFEST} is missing"
            )
    return None
