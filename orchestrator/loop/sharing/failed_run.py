"""The run that failed, of several that share a training, as a note on the error."""

from collections.abc import Iterator
from contextlib import contextmanager

_PREFIX = "in the turn of run "


@contextmanager
def note_failures(run_index: int) -> Iterator[None]:
    """Add a note that names the run to an error of the block."""
    try:
        yield
    except Exception as error:
        note_failed_run(error, run_index)
        raise


def note_failed_run(error: Exception, run_index: int) -> None:
    """Add a note that names the run which raised an error, unless the error or its cause has one."""
    error.add_note(f"{_PREFIX}{find_failed_run(error, run_index)}")


def find_failed_run(error: BaseException, otherwise: int = 0) -> int:
    """Return the index of the run that failed, from a note on the error or on its cause."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith(_PREFIX):
            return int(note.removeprefix(_PREFIX))
    return find_failed_run(error.__cause__, otherwise) if error.__cause__ else otherwise
