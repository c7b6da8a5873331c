"""New runs, and their names where other runs may have them. Used in the driver."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import get_args

from orchestrator.disk.if_exists import IfExists
from orchestrator.disk.lease import FOLDER as CLAIMS
from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import NOTHING_KNOWN, LaunchMetadata
from orchestrator.disk.removal import LinkRemoval, is_within, plan_removal
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.taken_name import check_name_is_free
from orchestrator.errors import StorageError, UsageError, errors_before_start
from orchestrator.experiment.yaml.source import ExperimentSource
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
    storage: str | Path | Storage,
    name: str,
    experiment: str,
    launch: LaunchMetadata = NOTHING_KNOWN,
    *,
    source: ExperimentSource | None = None,
    code: str = "",
) -> RunFolder:
    """Create a run with its first files, as `RunFolder.begin` does; raises UsageError if the name
    is taken."""
    folder = RunFolder(storage, name)
    check_name_is_free(folder)
    with errors_before_start():
        if folder.exists():
            _log.warning("Replacing %s, which stopped before it saved anything", folder)
            _delete_files(folder)
        folder.begin(experiment, launch, source, code)
    return folder


def _delete_files(folder: RunFolder) -> None:
    """Delete the files of a run except its claims, `run.json` last."""
    for file in folder.storage.names():
        if file not in (CLAIMS, "run.json"):
            folder.storage.delete(file)
    folder.storage.delete("run.json")
