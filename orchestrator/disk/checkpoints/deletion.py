"""Deletion of a checkpoint, also if it is cut short. Does not import torch."""

from orchestrator.disk.checkpoints.manifest import MANIFEST
from orchestrator.errors import StorageError
from orchestrator.storage import Storage


def delete_checkpoint(storage: Storage, name: str) -> None:
    """Delete a checkpoint. If the process is killed meanwhile, what is left of the checkpoint is not
    taken for a damaged one.

    Args:
        storage: The checkpoints of a run.
        name: The checkpoint, which may be missing.
    """
    if not storage.local:
        storage.delete(f"{name}/{MANIFEST}")
        storage.delete(name)
        return
    if not storage.exists(name):
        return
    hidden = f".{name}.deleted"
    storage.delete(hidden)
    try:
        storage.rename(name, hidden)
    except StorageError:
        # A folder that cannot be renamed may be another user's. The run goes on in any case, with a
        # warning of what cannot be deleted.
        hidden = name
    storage.delete(hidden)
