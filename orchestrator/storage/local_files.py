"""Files on this machine: written atomically, read only where they are files."""

import errno
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Any

from orchestrator.storage.backend import Answer, Item
from orchestrator.storage.disk_errors import advice_on, is_missing, raising_storage_errors
from orchestrator.storage.file_states import FileState

_PIECE_BYTES = 2**20
_UNFINISHED = re.compile(r"\..+\.(?P<pid>[0-9]+)(?:\.[0-9a-f]{8})?")
"""Name of a file that a process is writing."""

_log = logging.getLogger("hookyard")


class LocalFiles:
    """The files of this machine, as a backend of `Storage`.

    A file is written under a temporary name, synced and renamed, so that no reader sees an
    incomplete one.
    """

    filesystem = None
    verifies_uploads = False

    def get_local_path(self, path: str) -> Path:
        return Path(path)

    def reach(self, path: str) -> None:
        """Do nothing: a folder that is missing can be created."""

    def check_present(self, path: str) -> None:
        with raising_storage_errors(path):
            os.stat(path)

    def map(self, call: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        return [call(item) for item in items]

    # Listing

    def exists(self, path: str) -> bool:
        with raising_storage_errors(path):
            return Path(path).exists()

    def read_state(self, path: str) -> FileState | None:
        try:
            with raising_storage_errors(path, keeps_missing=True):
                status = os.stat(path)
        except FileNotFoundError:
            return None
        return FileState(status.st_size, status.st_mtime) if S_ISREG(status.st_mode) else None

    def list_names(self, path: str) -> list[str]:
        with raising_storage_errors(path):
            try:
                return sorted(os.listdir(path))
            except OSError as error:
                if is_missing(error):
                    return []
                raise

    def list_tree(self, path: str) -> dict[str, FileState]:
        states = {}
        for folder, inner, names in os.walk(path, onerror=_raise_unless_missing, followlinks=True):
            inner[:] = [name for name in inner if not _leads_back(os.path.join(folder, name))]
            for name in names:
                file = os.path.join(folder, name)
                state = self.read_state(file)
                if state:
                    states[file.removeprefix(path).lstrip("/")] = state
        return dict(sorted(states.items()))

    def list_unfinished(self, path: str) -> dict[str, int]:
        unfinished: dict[str, int] = {}
        for folder, _, names in os.walk(path):
            for name in names:
                match = _UNFINISHED.fullmatch(name)
                if match is not None:
                    unfinished[os.path.relpath(os.path.join(folder, name), path)] = int(
                        match["pid"]
                    )
        return unfinished

    def read_link(self, path: str) -> Path | None:
        return Path(os.path.realpath(path)) if os.path.islink(path) else None

    def list_folder_links(self, path: str) -> dict[str, Path]:
        links = {}
        for parent, folders, _ in os.walk(path):
            for folder in folders:
                link = Path(parent, folder)
                if link.is_symlink():
                    links[os.path.relpath(link, path)] = link.resolve()
        return dict(sorted(links.items()))

    # Reading

    def read(self, path: str, start: int) -> bytes:
        with self.open_copy(path) as file:
            file.seek(start)
            return file.read()

    def read_chunks(self, path: str) -> Iterator[bytes]:
        with self.open_copy(path) as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    @contextmanager
    def open_copy(self, path: str) -> Iterator[IO[bytes]]:
        """Open the file itself: it needs no copy."""
        with raising_storage_errors(path, keeps_missing=True):
            _check_is_file(path)
            with open(path, "rb") as file:
                yield file

    def open(self, path: str) -> Any:
        from pyarrow import OSFile  # a slow import

        with raising_storage_errors(path, keeps_missing=True):
            _check_is_file(path)
            return OSFile(path)

    # Writing

    @contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        with raising_storage_errors(path):
            unfinished = _make_unfinished_path(path)
            try:
                # "x" does not follow a link that somebody has placed there.
                with open(unfinished, "x+b") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(unfinished, path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise

    def append(self, path: str, data: bytes) -> None:
        with raising_storage_errors(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                file.write(data)

    def open_stream(self, path: str, start: bytes) -> IO[bytes]:
        with raising_storage_errors(path):
            unfinished = _make_unfinished_path(path)
            file = open(unfinished, "xb")  # noqa: SIM115  # the caller closes it
            try:
                file.write(start)
                file.flush()
                os.replace(unfinished, path)
            except BaseException:
                file.close()
                unfinished.unlink(missing_ok=True)
                raise
            return file

    def link(self, path: str, source: Path) -> bool:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            os.link(source, path, follow_symlinks=False)
        except OSError:
            return False
        return True

    def rename(self, path: str, new_path: str) -> None:
        with raising_storage_errors(new_path):
            os.replace(path, new_path)
            folder = os.open(os.path.dirname(new_path), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def delete(self, path: str) -> None:
        with raising_storage_errors(path):
            target = Path(path)
            if target.is_dir() and not target.is_symlink():
                _delete_folder(target)
            else:
                target.unlink(missing_ok=True)


def _delete_folder(folder: Path) -> None:
    """Delete what can be deleted, and warn of the first of the other files."""
    failures: list[tuple[str, OSError]] = []

    def collect(_: object, path: str, error: Any) -> None:
        if not isinstance(error[1], FileNotFoundError):  # another process may delete it too
            failures.append((path, error[1]))

    shutil.rmtree(folder, onerror=collect)
    if failures:
        path, error = failures[0]
        reason = error.strerror or error
        _log.warning("%s cannot be deleted: %s. %s", path, reason, advice_on(error))


def _raise_unless_missing(error: OSError) -> None:
    """Raise the error of a folder that cannot be listed, as a StorageError."""
    if not is_missing(error):
        with raising_storage_errors(error.filename):
            raise error


def _leads_back(path: str) -> bool:
    """Return whether a path is a link to a folder that it lies in, which has no end."""
    if not os.path.islink(path):
        return False
    return os.path.realpath(path) in map(os.path.realpath, Path(path).parents)


def _make_unfinished_path(path: str) -> Path:
    """Create the folder of a file, and return the path at which to write the file."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")


def _check_is_file(path: str) -> None:
    """Raise OSError for a pipe or a device, because reading it may block or never end."""
    mode = os.stat(path).st_mode
    if not S_ISREG(mode) and not S_ISDIR(mode):
        raise OSError(
            errno.ENXIO, "A pipe, a socket or a device is in the place of a file: move it away"
        )
