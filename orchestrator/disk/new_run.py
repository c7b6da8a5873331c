"""The name of a new run where another run may have it. Used in the driver."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import get_args

from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import IfExists
from orchestrator.disk.removal import is_within, plan_removal
from orchestrator.disk.run_folder import RunFolder, check_name_is_free, errors_before_start
from orchestrator.errors import StorageError, UsageError
from orchestrator.storage import Storage

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
        if is_within(source.path, folder):
            raise UsageError(
                f"{folder} cannot be replaced: the new run starts from it. Use --if-exists number"
            )
    removal = plan_removal(folder.location)
    _log.warning("Replacing %s", folder)
    removal.execute()
