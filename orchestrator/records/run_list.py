"""The runs and sweeps in a storage."""

from __future__ import annotations

import logging
from pathlib import Path

from orchestrator.errors import DamagedFile
from orchestrator.records.metadata import RunMetadata
from orchestrator.records.run_folder import RunFolder
from orchestrator.storage import Storage

_log = logging.getLogger("hookyard")


def list_run_folders(storage: Storage) -> list[RunFolder]:
    """Return the runs and sweeps in a storage by name; a folder that lost its `run.json` is skipped with a warning."""
    folders = [RunFolder(storage, name) for name in storage.names()]
    exists = dict(zip(folders, storage.each(RunFolder.exists, folders), strict=True))
    for folder in folders:
        if not exists[folder] and folder.has_lost_metadata():
            _log.warning("%s", folder.make_lost_metadata_error())
    return [folder for folder in folders if exists[folder]]


def list_runs(storage: str | Path) -> list[tuple[RunFolder, RunMetadata | DamagedFile]]:
    """Return the runs and sweeps in a storage with their metadata, damaged ones first, then the oldest; raises
    UsageError if the storage does not answer."""
    root = Storage(storage)
    root.reach()
    folders = [RunFolder(root, name) for name in root.names()]
    results = zip(folders, root.each(_read_metadata, folders), strict=True)
    runs = [(folder, metadata) for folder, metadata in results if metadata is not None]
    return sorted(runs, key=lambda run: "" if isinstance(run[1], DamagedFile) else run[1].started)


def _read_metadata(folder: RunFolder) -> RunMetadata | DamagedFile | None:
    try:
        return folder.read_metadata()
    except FileNotFoundError:
        return folder.make_lost_metadata_error() if folder.has_lost_metadata() else None
    except DamagedFile as error:
        return error
