"""The stack of a rank whose interpreter lock is held, so that no Python thread can write it."""

import faulthandler
from contextlib import suppress
from pathlib import Path


class StackDump:
    """File to which faulthandler writes this process's stacks if nothing arms it again in time.

    faulthandler waits in a thread of its own in C, which needs no interpreter lock. With
    `ends_process`, it also ends the process once it has written.
    """

    def __init__(self, path: Path, *, ends_process: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._ends_process = ends_process
        # Open until `close`, because faulthandler's thread writes to it.
        self._file = open(path, "w")  # noqa: SIM115

    def arm(self, limit_s: float) -> None:
        """Make faulthandler write the stacks unless this is called again within `limit_s`
        seconds."""
        faulthandler.cancel_dump_traceback_later()
        self._file.truncate(0)
        faulthandler.dump_traceback_later(limit_s, file=self._file, exit=self._ends_process)

    def close(self) -> None:
        """Disarm faulthandler, and remove the file and its empty folders."""
        faulthandler.cancel_dump_traceback_later()
        self._file.close()
        self._path.unlink(missing_ok=True)
        with suppress(OSError):  # another rank still has a file in the folder
            self._path.parent.rmdir()
            self._path.parent.parent.rmdir()
