"""The status of a run, and the lease of its driver, which a trial shares with its sweep. Imports
neither ray nor torch."""

from orchestrator.disk.lease import Lease, is_driven, is_driver_dead
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import get_sweep
from orchestrator.errors import errors_before_start
from orchestrator.storage import Storage


def find_status(folder: RunFolder, metadata: RunMetadata | None = None) -> str:
    """Return the status of `run.json`, or `lost` if the driver is dead.

    Args:
        folder: The run.
        metadata: The content of its `run.json`, if it has been read.
    """
    metadata = metadata or folder.read_metadata()
    is_trial = bool(metadata.trial)
    if metadata.status == "running":
        is_lost = is_driver_dead(metadata.driver, get_driven_folder(folder, is_trial=is_trial))
        return "lost" if is_lost else "running"

    # A resume takes the lease seconds before it trains. A trial's lease is its sweep's.
    can_be_resumed = not (metadata.is_complete or is_trial or folder.storage.local is None)
    if can_be_resumed and is_driven(folder.storage, other_process=True):
        return "running"
    return metadata.status


def make_lease(folder: RunFolder, *, force: bool = False) -> Lease:
    """Return the lease to drive a run, or a trial's sweep."""
    with errors_before_start():
        is_trial = bool(folder.read_metadata().trial)
        return Lease(get_driven_folder(folder, is_trial=is_trial), force=force)


def get_driven_folder(folder: RunFolder, *, is_trial: bool) -> Storage:
    """Return the folder with the lease of the run's driver."""
    return get_sweep(folder).storage if is_trial else folder.storage
