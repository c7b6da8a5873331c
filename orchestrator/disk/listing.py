"""The runs in a storage."""

import logging
import shlex
from pathlib import Path

from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.missing_run import find_lost_metadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.storage import Storage

_log = logging.getLogger("hookyard")


def list_run_folders(storage: Storage) -> list[RunFolder]:
    """Return the runs and sweeps in a storage by name; a folder that lost its `run.json` is skipped
    with a warning."""
    folders = [RunFolder(storage, name) for name in storage.names()]
    exists = storage.map(RunFolder.exists, folders)

    runs = []
    for folder, is_run in zip(folders, exists, strict=True):
        if is_run:
            runs.append(folder)
            continue
        lost = find_lost_metadata(folder.storage)
        if lost:
            _log.warning("%s", lost)
    return runs


def list_metadata(storage: str | Path) -> list[tuple[RunFolder, RunMetadata | DamagedFile]]:
    """Return runs and sweeps, damaged ones first, then the oldest; raises UsageError for an
    unreachable storage."""
    root = open_storage(storage)
    folders = [RunFolder(root, name) for name in root.names()]
    results = zip(folders, root.map(read_metadata_or_damage, folders), strict=True)
    runs = [(folder, metadata) for folder, metadata in results if metadata is not None]

    def sort_key(run: tuple[RunFolder, RunMetadata | DamagedFile]) -> tuple[bool, str]:
        metadata = run[1]
        if isinstance(metadata, DamagedFile):
            return False, ""
        return True, metadata.started

    return sorted(runs, key=sort_key)


def read_metadata_or_damage(folder: RunFolder) -> RunMetadata | DamagedFile | None:
    """Return the metadata of a run, or why they cannot be read; None if there is no run."""
    try:
        return folder.read_metadata()
    except DamagedFile as error:
        return error if folder.exists() else find_lost_metadata(folder.storage)


def open_storage(storage: str | Path) -> Storage:
    """Return a storage that can be reached; raises UsageError otherwise, and for a file."""
    for path in (Path(storage), *Path(storage).parents):
        if path.is_file():
            raise UsageError(f"{path} is a file; --storage names the folder that holds the runs")
    root = Storage(storage)
    root.reach()
    return root


def check_runs_folder(storage: Storage) -> None:
    """Raise UsageError if a storage cannot hold runs, because it does not exist or is a run
    itself."""
    if not storage.exists():
        raise UsageError(
            f"the folder {storage} does not exist; --storage names the folder that holds the runs"
        )
    if storage.exists("run.json"):
        command = f"hookyard show {shlex.quote(str(storage))}"
        raise UsageError(f"{storage} is a run, not a folder of runs. To see it: {command}")
