"""The stored checkpoints of a run by their manifests. Needs no torch."""

from __future__ import annotations

import logging

from orchestrator.checkpoint.index import INDEX
from orchestrator.checkpoint.manifest import MANIFEST, position_in, read_manifest
from orchestrator.checkpoint.position import Position
from orchestrator.errors import CheckpointError, DamagedFile
from orchestrator.storage import Storage

_log = logging.getLogger("hookyard")


def list_checkpoints(storage: Storage, *, warn: bool = True) -> list[str]:
    """Return the stored checkpoints, oldest first; damaged ones are left out with a warning."""
    names = [name for name in storage.names() if not name.startswith(".")]
    positions = dict(zip(names, storage.each(lambda name: read_position(storage, name, warn=warn), names), strict=True))
    stored = {name: position for name, position in positions.items() if position}
    if stored and warn:
        warn_lost_index(storage)
    return sorted(stored, key=lambda name: (stored[name].step, stored[name].stage))


def read_position(storage: Storage, name: str, *, warn: bool = True) -> Position | None:
    """Return the position of a checkpoint; None if there is none, or with a warning if it is damaged."""
    try:
        return position_in(read_manifest(storage, name))
    except FileNotFoundError:
        # On an object store, a checkpoint without a manifest may be on its way.
        if warn and storage.local and storage.exists(f"{name}/model.pt"):
            _log.warning("the checkpoint %s is damaged: its %s is gone", storage / name, MANIFEST)
    except (DamagedFile, CheckpointError) as error:
        if warn:
            _log.warning("%s", error)
    return None


def warn_lost_index(storage: Storage) -> None:
    """Warn if there are checkpoints without their index."""
    if storage.exists(INDEX):
        return
    if any(storage.exists(f"{name}/{MANIFEST}") for name in storage.names()):
        _log.warning("%s is gone: no checkpoint is known as the best", storage / INDEX)
