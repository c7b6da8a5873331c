"""A path where there is no run: what it is instead, and which run may be meant."""

import shlex
from pathlib import Path

from orchestrator.disk.experiment_file import EXPERIMENT_FILE, SOURCE_FILE
from orchestrator.disk.run_file import RUN_FILE, make_lost_metadata_error
from orchestrator.errors import DamagedFile
from orchestrator.nearest_names import find_nearest
from orchestrator.storage import Storage

INITIAL_FILES = (EXPERIMENT_FILE, SOURCE_FILE, "main.py", RUN_FILE)
"""Files written when a run is created, in order."""
_ALL_RUNS = "`hookyard ls` lists the runs"


def find_lost_metadata(path: Storage) -> DamagedFile | None:
    """Return the error of a run that has lost its `run.json`: it has files besides those of a new
    run. None for anything else."""
    if path.exists(RUN_FILE) or not path.exists(EXPERIMENT_FILE):
        return None
    is_new = all(name.startswith((*INITIAL_FILES, ".")) for name in path.names())
    return None if is_new else make_lost_metadata_error(path)


def find_lost_target(path: Storage) -> Path | None:
    """Return the target of a link that leads nowhere; None for anything else."""
    target = path.link_target
    if target is None or path.exists():
        return None
    return target


def describe_lost_target(path: Storage, target: Path) -> str:
    """Say what can be done about a link whose target does not exist."""
    command = f"hookyard rm {shlex.quote(str(path))}"
    return f"{path} is a link to {target}, which does not exist. To remove the link: {command}"


def explain_missing_run(path: Storage) -> str:
    """Return why a path is not a run, and what may be meant instead."""
    target = find_lost_target(path)
    if target is not None:
        return describe_lost_target(path, target)
    parent = path.parent
    if parent.state(path.name):
        return _explain_file(path)
    if path.exists(SOURCE_FILE):
        return (
            f"{path} is not a run: it has no run.json, because the process was killed while creating it."
            " A new run can reuse the name"
        )
    if path.names():
        return f"{path} is not a run: it has no run.json. {_ALL_RUNS}"

    run = path.name.partition("@")[0]
    if run != path.name and parent.exists(f"{run}/{RUN_FILE}"):
        return f"{path} is not a run: this takes a run without a checkpoint, {parent / run}"

    reason = "it has no run.json" if path.exists() else "it does not exist"
    nearest = find_nearest(path.name, _list_runs(parent))
    if nearest:
        return f"{path} is not a run: {reason} (did you mean {parent / nearest}?)"
    return f"{path} is not a run: {reason}. {_ALL_RUNS}"


def _explain_file(path: Storage) -> str:
    if path.name.endswith((".yaml", ".yml")):
        command = f"hookyard run {shlex.quote(str(path))}"
        return f"{path} is not a run but an experiment file. To start it: {command}"
    return f"{path} is not a run but a file. {_ALL_RUNS}"


def _list_runs(folder: Storage) -> list[str]:
    names = folder.names()
    are_runs = folder.map(lambda name: folder.exists(f"{name}/{RUN_FILE}"), names)
    return [name for name, is_run in zip(names, are_runs, strict=True) if is_run]
