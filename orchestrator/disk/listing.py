"""The runs in a storage."""

import logging
from pathlib import Path

from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import DamagedFile
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
        elif lost := folder.find_lost_metadata():
            _log.warning("%s", lost)
    return runs


def list_runs(storage: str | Path) -> list[tuple[RunFolder, RunMetadata | DamagedFile]]:
    """Return runs and sweeps, damaged ones first, then the oldest; raises UsageError for an
    unreachable storage."""
    root = Storage(storage)
    root.reach()
    folders = [RunFolder(root, name) for name in root.names()]
    results = zip(folders, root.map(_read_metadata, folders), strict=True)
    runs = [(folder, metadata) for folder, metadata in results if metadata is not None]

    def get_start(run: tuple[RunFolder, RunMetadata | DamagedFile]) -> str:
        return "" if isinstance(run[1], DamagedFile) else run[1].started

    return sorted(runs, key=get_start)


def _read_metadata(folder: RunFolder) -> RunMetadata | DamagedFile | None:
    try:
        return folder.read_metadata()
    except DamagedFile as error:
        return error if folder.exists() else folder.find_lost_metadata()
