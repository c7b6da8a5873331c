"""Creation of a run under an unused name. Runs in the driver."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

from orchestrator.errors import DamagedFile, UsageError
from orchestrator.records.lease import FOLDER as CLAIMS
from orchestrator.records.run_folder import COMPLETE, EVALUATIONS, INITIAL_FILES, RunFolder, errors_before_start
from orchestrator.records.run_list import list_run_folders
from orchestrator.storage import Storage

_log = logging.getLogger("hookyard")


def create_run(storage: str | Path | Storage, name: str, experiment: str, **metadata: Any) -> RunFolder:
    """Create a run; raises UsageError if the name is taken."""
    folder = RunFolder(storage, name)
    check_name_is_free(folder)
    with errors_before_start():
        if folder.exists():
            _log.warning("Replacing %s, which ended before training", folder)
            for file in sorted(folder.storage.names(), key="run.json".__eq__):
                if file != CLAIMS:
                    folder.storage.delete(file)
        folder.begin(experiment, **metadata)
    return folder


@errors_before_start()
def check_name_is_free(folder: RunFolder) -> None:
    """Raise UsageError if a new run would overwrite another run, or other files.

    A name can be reused if the process was killed while creating the run, or if the run ended before it trained.
    """
    if folder.exists():
        if _is_untrained(folder):
            return
        raise UsageError(
            f"{folder} exists already. To resume it: hookyard resume {shlex.quote(str(folder))}\nTo start another run,"
            " choose another name: --name, or name= in Python."
        )
    names = folder.storage.names()
    foreign = [
        name
        for name in names
        if name != CLAIMS and not any(name == first or name.startswith(f".{first}.") for first in INITIAL_FILES)
    ]
    if foreign or names == ["experiment.yaml"]:
        content = ", ".join((foreign or names)[:5])
        raise UsageError(
            f"{folder} exists already and is not a run: it contains {content}, but no run.json. Choose"
            " another name: --name, or name= in Python."
        )


def _is_untrained(folder: RunFolder) -> bool:
    """Return whether a run, or all trials of a sweep, ended before the first step."""
    try:
        metadata = folder.read_metadata()
        if folder.find_status(metadata) == "running":
            return False
        trials = list_run_folders(folder.storage / "trials") if metadata.sweep else []
        return not any(map(_has_trained, trials or [folder]))
    except DamagedFile:
        return False


def _has_trained(folder: RunFolder) -> bool:
    metadata = folder.read_metadata()
    if metadata.status in COMPLETE:
        return True
    files = ("metrics.jsonl", "stats.parquet", EVALUATIONS)
    if any(map(folder.storage.exists, files)) or any("/rows-" in name for name in folder.storage.tree("stats")):
        return True
    parent = metadata.continued_from
    names = {name for name in folder.find_checkpoint_folder().names() if name != "index.json"}
    return bool(names - {parent["checkpoint"] if parent else None})
