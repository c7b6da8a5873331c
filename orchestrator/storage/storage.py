"""Storage: files in a folder or under a URL, read and written the same way."""

import copy
import errno
import logging
import os
import posixpath
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from threading import current_thread
from typing import IO, Any, NamedTuple, TypeVar, cast

from orchestrator.errors import UsageError
from orchestrator.storage.disk_errors import advice_on, raising_storage_errors
from orchestrator.storage.location import (
    is_file_url,
    is_url,
    join_location,
    read_file_url,
    split_options,
    with_access_of,
    without_credentials,
)
from orchestrator.storage.remote import CONNECTIONS, Remote

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_log = logging.getLogger("hookyard")

_THREADS = "requests"
"""Name of the threads that make requests in parallel."""
_PIECE_BYTES = 2**20

_UNFINISHED = re.compile(r"\..+\.(?P<pid>[0-9]+)(?:\.[0-9a-f]{8})?")
"""Name of a file that a process is writing."""


class FileState(NamedTuple):
    """Size and age of a file."""

    size_bytes: int
    modified: float | None
    """Unix time by the store's clock; None if the store does not provide it."""


class Storage:
    """A folder on this machine, or a location that pyarrow or fsspec supports (`s3://bucket/runs`).

    Local files are written to a temporary name, synced and renamed, so no reader sees an incomplete
    file. Remote files are uploaded in one operation. Raises StorageError if the store fails,
    UsageError for an unknown location.
    """

    def __init__(self, location: str | Path) -> None:
        text = str(location)
        if not text:
            raise UsageError("the path of a run or of a storage is empty; write . for this folder")
        folder = read_file_url(text) if is_file_url(text) else text
        self.local = None if is_url(folder) else Path(folder).expanduser().absolute()
        self.location = str(self.local or text)
        """Location with credentials, for other processes; `str` hides them."""
        self._remote: Any = None if self.local else Remote(text)
        self.root: str = self._remote.root if self._remote else str(self.local)

    def at(self, path: str) -> "Storage":
        """Return the storage at another path, with the options and credentials of this one."""
        return type(self)(with_access_of(self.location, path))

    def __truediv__(self, part: str) -> "Storage":
        inside = copy.copy(self)
        inside.location = join_location(self.location, part)
        inside.root = f"{self.root}/{part}"
        inside.local = self.local / part if self.local else None
        return inside

    def __str__(self) -> str:
        return without_credentials(self.location)

    @property
    def path(self) -> str:
        """Location without options and credentials, to be recorded."""
        return split_options(str(self))[0]

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> "Storage":
        folder, options = split_options(self.location)
        around = copy.copy(self)
        around.location = posixpath.dirname(folder.rstrip("/")) + options
        around.root = posixpath.dirname(self.root)
        around.local = self.local and self.local.parent
        return around

    @property
    def filesystem(self) -> Any:
        """pyarrow's file system that contains `root`; None for a local folder."""
        return self._remote and self._remote.filesystem

    @property
    def verifies_uploads(self) -> bool:
        """True if the store verifies uploads, as S3 does with the checksum that pyarrow sends."""
        return self._remote is not None and self._remote.filesystem.type_name == "s3"

    def reach(self) -> None:
        """Raise UsageError if a remote store does not answer."""
        if self._remote:
            self._remote.reach()

    def check_present(self) -> None:
        """Raise StorageError if the storage's own folder is missing, for example because a share is
        unmounted.

        Files written there would be lost when it is mounted again.
        """
        if self.local:
            with raising_storage_errors(self.local):
                self.local.stat()

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    # Listing

    def exists(self, name: str = "") -> bool:
        if self.local:
            with raising_storage_errors(self.local / name):
                return (self.local / name).exists()
        path = self._path(name)
        return bool(
            self._remote.request(lambda filesystem: filesystem.get_file_info(path).type.value)
        )

    def state(self, name: str) -> FileState | None:
        """Return the state of a file; None if there is none."""
        path = self._path(name)
        if self.local:
            try:
                with raising_storage_errors(path, missing=False):
                    status = os.stat(path)
            except FileNotFoundError:
                return None
            return FileState(status.st_size, status.st_mtime) if S_ISREG(status.st_mode) else None
        info = self._remote.request(lambda filesystem: filesystem.get_file_info(path))
        return _to_state(info) if info.is_file else None

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names in a folder; empty if there is none."""
        if self.local is None:
            return sorted(info.base_name for info in self._remote.list_infos(self._path(folder)))
        path = self.local / folder
        with raising_storage_errors(path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def tree(self, folder: str = "") -> dict[str, FileState]:
        """Return all files below a folder by relative path, sorted: one request per thousand."""
        from pyarrow.fs import FileSelector, LocalFileSystem

        root = self._path(folder)
        if self.local:
            with raising_storage_errors(root):
                selector = FileSelector(root, allow_not_found=True, recursive=True)
                infos = LocalFileSystem().get_file_info(selector)
        else:
            infos = self._remote.list_infos(root, recursive=True)
        files = {info.path[len(root) + 1 :]: _to_state(info) for info in infos if info.is_file}
        return dict(sorted(files.items()))

    @property
    def link_target(self) -> Path | None:
        """The folder that this storage is a link to; None if it is no link."""
        return self.local.resolve() if self.local and self.local.is_symlink() else None

    def folder_links(self) -> dict[str, Path]:
        """Return the links to folders in a local folder, at any depth: the target of each by
        relative path."""
        links = {}
        for parent, folders, _ in os.walk(self.local) if self.local else ():
            for path in (Path(parent, folder) for folder in folders):
                if path.is_symlink():
                    links[os.path.relpath(path, self.local)] = path.resolve()
        return dict(sorted(links.items()))

    def map(self, call: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return the results of a function for all items, in order; remote calls run
        concurrently."""
        if self.local or current_thread().name.startswith(_THREADS):
            return [call(item) for item in items]
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix=_THREADS) as pool:
            return [*pool.map(call, items)]

    # Reading

    def read(self, name: str, start: int = 0) -> bytes:
        """Return a file's bytes from `start` on; raises FileNotFoundError."""
        if self.local is None:
            return cast(bytes, self._remote.read(self._path(name), start))
        with self._open_local(name) as file:
            file.seek(start)
            return file.read()

    def read_chunks(self, name: str) -> Iterator[bytes]:
        """Yield a file's bytes in pieces; raises FileNotFoundError."""
        if self.local is None:
            yield from self._remote.read_chunks(self._path(name))
            return
        with self._open_local(name) as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    @contextmanager
    def open_copy(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file for reading, or a local copy of a remote file; raises FileNotFoundError."""
        if self.local:
            with self._open_local(name) as file:
                yield file
            return
        with tempfile.TemporaryFile() as temporary:
            for piece in self.read_chunks(name):
                temporary.write(piece)
            temporary.seek(0)
            yield temporary

    def open(self, name: str) -> Any:
        """Open a file for random access by pyarrow; raises FileNotFoundError."""
        if self.local is None:
            path = self._path(name)
            return self._remote.request(lambda filesystem: filesystem.open_input_file(path))
        from pyarrow import OSFile

        with raising_storage_errors(self.local / name, missing=False):
            return OSFile(str(_check_is_file(self.local / name)))

    @contextmanager
    def _open_local(self, name: str) -> Iterator[IO[bytes]]:
        path = cast(Path, self.local) / name
        with raising_storage_errors(path, missing=False), open(_check_is_file(path), "rb") as file:
            yield file

    # Writing

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a temporary file for writing and reading; it gets its name after the block, unless
        the block fails."""
        if self.local is None:
            with tempfile.TemporaryFile() as file:
                yield file
                self._remote.send(file, self._path(name))
            return
        path = self.local / name
        with raising_storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = _make_unfinished_path(path)
            try:
                # "x" does not follow a link that somebody has placed there.
                with open(beside, "x+b") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(beside, path)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise

    def write(self, name: str, data: bytes | str) -> None:
        with self.create(name) as file:
            file.write(data.encode(errors="backslashreplace") if isinstance(data, str) else data)

    def link(self, name: str, source: "Storage", file: str) -> bool:
        """Hard-link a file of another storage; return False if that is impossible or the file is
        missing."""
        if self.local is None or source.local is None:
            return False
        path = self.local / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(source.local / file, path, follow_symlinks=False)
        except OSError:
            return False
        return True

    def append(self, name: str, data: str) -> None:
        """Append text to a file. A remote file is uploaded again, so keep it small; it must have
        one writer."""
        added = data.encode(errors="backslashreplace")
        if self.local is None:
            with suppress(FileNotFoundError):
                added = self.read(name) + added
            return self.write(name, added)
        path = self.local / name
        with raising_storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                file.write(added)
        return None

    def open_stream(self, name: str, start: bytes) -> IO[bytes]:
        """Open a local file for incremental writing. Readers never see it without the bytes
        `start`."""
        self.check_present()
        path = cast(Path, self.local) / name
        with raising_storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = _make_unfinished_path(path)
            file = open(beside, "xb")  # noqa: SIM115  # the caller closes it
            try:
                file.write(start)
                file.flush()
                os.replace(beside, path)
            except BaseException:
                file.close()
                beside.unlink(missing_ok=True)
                raise
            return file

    def rename(self, name: str, to: str) -> None:
        folder = cast(Path, self.local)
        with raising_storage_errors(folder / to):
            os.replace(folder / name, folder / to)
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its content, if it exists.

        Only a link itself is deleted, never what it leads to. What cannot be deleted in a folder
        is left there with a warning.
        """
        if self.local is None:
            return cast(None, self._remote.delete(self._path(name)))
        path = self.local / name
        with raising_storage_errors(path):
            if path.is_dir() and not path.is_symlink():
                _delete_folder(path)
            else:
                path.unlink(missing_ok=True)
        return None

    def delete_leftovers(self, is_alive: Callable[[int], bool]) -> None:
        """Delete unfinished files of dead processes in a local folder, at any depth."""
        if self.local is None:
            return
        for folder, _, names in os.walk(self.local):
            for name in names:
                match = _UNFINISHED.fullmatch(name)
                if match is None or is_alive(int(match["pid"])):
                    continue
                path = Path(folder, name)
                with raising_storage_errors(path):
                    path.unlink(missing_ok=True)


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


def _make_unfinished_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")


def _to_state(info: Any) -> FileState:
    return FileState(info.size, info.mtime and info.mtime.timestamp())


def _check_is_file(path: Path) -> Path:
    """Return the path; raises OSError for a pipe or a device, because reading it may block or never
    end."""
    mode = path.stat().st_mode
    if S_ISREG(mode) or S_ISDIR(mode):
        return path
    raise OSError(
        errno.ENXIO, "A pipe, a socket or a device is in the place of a file: move it away"
    )
