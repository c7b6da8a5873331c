"""New runs, and their names where other runs may have them. Used in the driver."""

import logging
import shlex
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, get_args

from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.index import INDEX
from orchestrator.disk.lease import FOLDER as CLAIMS
from orchestrator.disk.lease import Lease, is_driven
from orchestrator.disk.listing import list_run_folders
from orchestrator.disk.metadata import IfExists, RunMetadata
from orchestrator.disk.missing_run import describe_lost_target, find_lost_target
from orchestrator.disk.removal import LinkRemoval, is_within, plan_removal
from orchestrator.disk.reports import REPORTS
from orchestrator.disk.run_folder import (
    EVALUATIONS,
    INITIAL_FILES,
    RunFolder,
    errors_before_start,
)
from orchestrator.errors import DamagedFile, StorageError, UsageError
from orchestrator.storage import Storage
from orchestrator.storage.disk_errors import advice_on

_log = logging.getLogger("hookyard")


@contextmanager
def taking_name(
    folder: RunFolder, if_exists: IfExists = "error", sources: Iterable[Storage] = ()
) -> Iterator[tuple[RunFolder, Lease]]:
    """Yield the folder of a new run, and its lease until the block ends.

    If the name is taken, `number` takes the first free one of NAME-2, NAME-3 and so on, and
    `replace` removes the run that has it. Raises UsageError if the name stays taken, and before a
    running run, or one of `sources`, from which the new run starts, is removed.
    """
    if if_exists not in get_args(IfExists):
        raise UsageError(f"if_exists must be 'error', 'number' or 'replace', got {if_exists!r}")
    _make_storage_folder(folder.storage.parent)
    if if_exists == "replace":
        _remove(folder, sources)
    with ExitStack() as stack:
        for candidate in _list_candidates(folder, if_exists):
            try:
                check_name_is_free(candidate)
                lease = stack.enter_context(Lease(candidate.storage))
            except UsageError as error:
                if if_exists == "number" and not isinstance(error.__cause__, StorageError):
                    continue  # another driver may just have taken it
                raise
            yield candidate, lease
            return


def _make_storage_folder(storage: Storage) -> None:
    """Create a local storage's folder; raises UsageError if it cannot be one."""
    folder = storage.local
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
        if file is not None:
            place = "is a file" if file == folder else f"would be inside the file {file}"
            raise UsageError(f"the storage {storage} {place}; pass a folder") from error
        reason = f"{error.strerror}. {advice_on(error)}"
        raise UsageError(f"the storage {storage} cannot be created: {reason}") from error


def find_free_name(folder: RunFolder) -> RunFolder:
    """Return the folder that a new run would get with `if_exists="number"`."""
    for candidate in _list_candidates(folder, "number"):
        with suppress(UsageError):
            check_name_is_free(candidate)
            break
    return candidate


def _list_candidates(folder: RunFolder, if_exists: IfExists) -> Iterator[RunFolder]:
    yield folder
    if if_exists != "number":
        return
    root = folder.storage.parent
    taken = set(root.names())
    for number in count(2):
        name = f"{folder.name}-{number}"
        if name not in taken:
            yield RunFolder(root, name)


@errors_before_start()
def _remove(folder: RunFolder, sources: Iterable[Storage]) -> None:
    """Remove a run, if there is one; `check_name_is_free` refuses any other files."""
    if not folder.exists():
        return
    folder.read_metadata()  # raises DamagedFile for what may not be a run
    for source in sources:
        if is_within(source.path, folder.storage):
            raise UsageError(
                f"{folder} cannot be replaced: the new run starts from it. Use --if-exists number"
            )
    removal = plan_removal(folder.location)
    if isinstance(removal, LinkRemoval):
        _log.warning("Replacing %s, a link to %s: the run there stays", folder, removal.target)
    else:
        _log.warning("Replacing %s", folder)
    removal.execute()


def create_run(
    storage: str | Path | Storage, name: str, experiment: str, **metadata: Any
) -> RunFolder:
    """Create a run; raises UsageError if the name is taken."""
    folder = RunFolder(storage, name)
    check_name_is_free(folder)
    with errors_before_start():
        if folder.exists():
            _log.warning("Replacing %s, which stopped before it saved anything", folder)
            _delete_files(folder)
        folder.begin(experiment, **metadata)
    return folder


def _delete_files(folder: RunFolder) -> None:
    """Delete the files of a run except its claims, `run.json` last."""
    for file in folder.storage.names():
        if file not in (CLAIMS, "run.json"):
            folder.storage.delete(file)
    folder.storage.delete("run.json")


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
        if folder.find_status(metadata) == "running":
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
