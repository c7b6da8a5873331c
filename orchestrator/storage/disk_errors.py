"""Errors of the operating system, as errors of the storage with advice."""

import errno

from orchestrator.errors import StorageError

_ADVICE = {
    errno.ENOSPC: "The disk is full, or has room for no more files: make room",
    errno.EFBIG: "The file is larger than the limit: raise it (ulimit -f), or use another storage",
    errno.EDQUOT: "The quota is used up: make room",
    errno.ENOENT: "The folder is missing or cannot be created: use another storage",
    errno.EROFS: "It is read-only: use another storage",
    errno.EACCES: "This user lacks permission: change its permissions, or use another storage",
    errno.EPERM: "This user lacks permission: change its permissions, or use another storage",
    errno.ENAMETOOLONG: "Use a shorter name",
    errno.ENOTDIR: "A file has the name of a folder: move it away",
    errno.EEXIST: "A file has the name of a folder: move it away",
    errno.EISDIR: "A folder has the name of a file: move it away",
    errno.ELOOP: "A link leads back to itself: delete it",
    errno.EIO: "The disk cannot read or write there, and may be failing: save its data",
}


def advice_on(error: OSError) -> str:
    """Return what to do about an error of the operating system."""
    return _ADVICE.get(error.errno or 0, "Check the disk")


def is_missing(error: OSError) -> bool:
    """Return whether there is nothing at a path: no file, or a link that leads back to itself."""
    return isinstance(error, FileNotFoundError) or error.errno == errno.ELOOP


class raising_storage_errors:
    """Context manager that converts OSErrors to StorageErrors with the path and advice.

    A class, because an error that a generator raises keeps the callers' frames until the next
    garbage collection.

    Args:
        place: The file or folder that the message names.
        keeps_missing: Whether a missing file stays a FileNotFoundError, which a file in the place of
            one of its folders and a link that leads back to itself become too.
    """

    def __init__(self, place: object, *, keeps_missing: bool = False) -> None:
        self._place = place
        self._keeps_missing = keeps_missing

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, OSError):
            return
        if self._keeps_missing and (is_missing(error) or isinstance(error, NotADirectoryError)):
            raise FileNotFoundError(error.errno, error.strerror, str(self._place)) from error
        reason = error.strerror or error
        raise StorageError(f"{self._place}: {reason}. {advice_on(error)}") from error
