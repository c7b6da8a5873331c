"""Whether the name of a new run is taken, and what can be done about it. Used in the driver."""

import shlex

from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.index import INDEX
from orchestrator.disk.evaluations import EVALUATIONS
from orchestrator.disk.lease import FOLDER as CLAIMS
from orchestrator.disk.lease import is_driven
from orchestrator.disk.listing import list_run_folders
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.missing_run import INITIAL_FILES, describe_lost_target, find_lost_target
from orchestrator.disk.reports import REPORTS
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from orchestrator.errors import DamagedFile, UsageError, errors_before_start


@errors_before_start()
def check_name_is_free(folder: RunFolder) -> None:
    """Raise UsageError if a new run would overwrite another run, or other files.

    A name can be reused if the process was killed while creating the run, or if the run ended
    before it trained.
    """
    if folder.exists():
        if _is_untrained(folder):
            return
        raise UsageError(_describe_taken_name(folder))

    target = find_lost_target(folder.storage)
    if target is not None:
        raise UsageError(describe_lost_target(folder.storage, target))
    names = folder.storage.names()
    unfinished = tuple(f".{name}." for name in INITIAL_FILES)
    foreign = [
        name
        for name in names
        if name not in (CLAIMS, *INITIAL_FILES) and not name.startswith(unfinished)
    ]
    if foreign or names == ["experiment.yaml"]:
        content = ", ".join((foreign or names)[:5])
        raise UsageError(
            f"{folder} exists and is not a run: it contains {content}; pass a different --name"
        )


def _describe_taken_name(folder: RunFolder) -> str:
    """Say what can be done about a run that has the name of a new one."""
    path = shlex.quote(str(folder))
    number = "To start a new run, use --if-exists number or another --name"
    replace_it = "--if-exists replace removes this one first"
    python = "In Python, if_exists= and name=."
    try:
        metadata = folder.read_metadata()
    except DamagedFile as error:
        return f"{folder} exists, and {error.file} is damaged: {error.what}\n{number}. {python}"
    if is_driven(folder.storage):
        return f"{folder} exists and is running. To follow it: hookyard watch {path}\n{number}. {python}"
    if metadata.is_complete:
        longer = _describe_longer_training(folder, metadata)
        return (
            f"{folder} exists and has {metadata.status}.{longer}\n{number}; {replace_it}. {python}"
        )
    flag = " --failed" if metadata.sweep and metadata.status == "failed" else ""
    resume = f"To resume it: hookyard resume {path}{flag}"
    if folder.storage.exists("main.py"):
        resume = f"To resume it, call resume({str(folder)!r}) in the script or notebook that defines its task"
    return f"{folder} exists. {resume}\n{number}; {replace_it}. {python}"


def _describe_longer_training(folder: RunFolder, metadata: RunMetadata) -> str:
    """Return the command that trains a complete run longer; nothing if none can."""
    if (
        metadata.evaluates
        or metadata.diverged
        or not (metadata.sweep or _has_own_checkpoint(folder, metadata))
    ):
        return ""
    try:
        config = folder.read_experiment()
    except DamagedFile:
        return ""
    unit = "epochs" if config.get("epochs") else "steps"
    what, label = ("its best trial", "best") if metadata.sweep else ("it", "last")
    run = shlex.quote(f"{folder}@{label}")
    return f" To train {what} longer: hookyard run {run} {unit}={2 * (config.get(unit) or 1)}"


def _is_untrained(folder: RunFolder) -> bool:
    """Return whether a run, or all trials of a sweep, ended before the first step."""
    try:
        metadata = folder.read_metadata()
        if find_status(folder, metadata) == "running":
            return False
        trials = list_run_folders(folder.storage / "trials") if metadata.sweep else []
        return not any(map(_has_trained, trials or [folder]))
    except DamagedFile:
        return False


def _has_trained(folder: RunFolder) -> bool:
    metadata = folder.read_metadata()
    if metadata.is_complete:
        return True
    if any(map(folder.storage.exists, (REPORTS, "stats.parquet", EVALUATIONS))):
        return True
    if any("/rows-" in name for name in folder.storage.tree("stats")):
        return True
    return _has_own_checkpoint(folder, metadata)


def _has_own_checkpoint(folder: RunFolder, metadata: RunMetadata) -> bool:
    """Return whether a run has a checkpoint besides the one that it continues from."""
    names = {*find_checkpoint_folder(folder).names()} - {INDEX}
    if metadata.continued_from:
        names.discard(metadata.continued_from.checkpoint)
    return bool(names)
