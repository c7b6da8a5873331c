"""Storage: files under a folder or a URL, read and written the same way."""

from __future__ import annotations

import copy
import errno
import os
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

from orchestrator.errors import StorageError
from orchestrator.storage.growing import GrowingFile
from orchestrator.storage.location import is_url, joined, opened_like, split_options, without_credentials
from orchestrator.storage.remote import CONNECTIONS, Remote

Thing = TypeVar("Thing")
Answer = TypeVar("Answer")

_THREADS = "requests"
"""What the threads are called in which requests are made at once."""
_PIECE_BYTES = 2**20

_BESIDE = re.compile(r"\..+\.(?P<pid>[0-9]+)(?:\.[0-9a-f]{8})?")
"""What a file is called while a process writes it beside its place."""


class FileState(NamedTuple):
    """How far a file has grown, and when it was last written."""

    size_bytes: int
    modified: float | None
    """Seconds since 1970, by the clock of whoever keeps the file; None where that does not say."""


_ADVICE = {
    errno.ENOSPC: "The disk is full, or has room for no more files: make room",
    errno.EFBIG: "A file may not be so large there: raise the limit (ulimit -f), or give another storage",
    errno.EDQUOT: "The quota is used up: make room",
    errno.EROFS: "It can only be read: give another storage",
    errno.EACCES: "This user may not: change its permissions, or give another storage",
    errno.EPERM: "This user may not: change its permissions, or give another storage",
    errno.ENAMETOOLONG: "Give a shorter name",
    errno.ENOTDIR: "A file lies where a folder should be: move it away",
    errno.EEXIST: "A file lies where a folder should be: move it away",
    errno.EISDIR: "A folder lies where a file should be: move it away",
    errno.ENOENT: "It was removed meanwhile",
    errno.ENXIO: "A pipe, a socket or a device lies where a file should be: move it away",
    errno.ELOOP: "A link lies where a file should be, and leads to itself: move it away",
    errno.EIO: "The disk cannot read or write there, and may be about to fail: save what is on it",
}


def advice_on(error: OSError) -> str:
    """What can be done about an error of the operating system."""
    return _ADVICE.get(error.errno or 0, "Look at the disk")


@contextmanager
def telling_of(place: object, missing: bool = True) -> Iterator[None]:
    """Within it an error of the operating system is raised as a StorageError that names the place and says what can be
    done; that a file is not there only where it is `missing`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not missing:
            raise FileNotFoundError(error.errno, error.strerror, str(place)) from error
        raise StorageError(
            f"{place}: {error.strerror or error}. {advice_on(error)}; hookyard resume goes on from the last checkpoint"
        ) from error


class Storage:
    """A folder on this machine, or under any location pyarrow or fsspec knows (`s3://bucket/runs`).

    Runs in every process. Local files are written beside their place, synced and renamed, so that no reader ever meets
    half a file; what goes elsewhere is sent whole, and again while that does not answer. Raises StorageError where it
    stays away or refuses, and UsageError for a location that nobody knows.
    """

    def __init__(self, location: str | Path) -> None:
        given = str(location)
        folder = given.removeprefix("file://")
        self.local = None if is_url(folder) else Path(folder).expanduser().absolute()
        self.location = str(self.local or given)
        """With everything it takes to open it again, such as keys: to be handed over, never to be shown."""
        self._remote: Any = None if self.local else Remote(given)
        self.root: str = self._remote.root if self._remote else str(self.local)
        self._growing: dict[str, GrowingFile] = {}

    def at(self, path: str) -> Storage:
        """The storage at another path, as `path` gives it, with the options and keys of this one."""
        location = opened_like(self.location, path)
        root = self._remote and self._remote.root_of(path)
        if root is None:
            return Storage(location)
        there = copy.copy(self)
        there.location, there.root = location, root
        return there

    def __truediv__(self, part: str) -> Storage:
        inside = copy.copy(self)
        inside.location, inside.root = joined(self.location, part), f"{self.root}/{part}"
        inside.local = self.local / part if self.local else None
        return inside

    def __str__(self) -> str:
        return without_credentials(self.location)

    @property
    def path(self) -> str:
        """Where it lies, without options and keys: to be written down."""
        return split_options(str(self))[0]

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Storage:
        """The folder it lies in."""
        return self.at(self.path.rstrip("/").rpartition("/")[0] or "/")

    @property
    def filesystem(self) -> Any:
        """pyarrow's file system, in which `root` lies; None for a folder of this machine."""
        return self._remote and self._remote.filesystem

    @property
    def verifies_uploads(self) -> bool:
        """Whether it takes nothing but the bytes that were sent: S3 compares each request with the checksum that
        pyarrow sends along, CRC-64 or MD5."""
        return self._remote is not None and self._remote.filesystem.type_name == "s3"

    def reach(self) -> None:
        """Asks once, before anything is begun; raises UsageError where nobody answers. Needless for a folder."""
        if self._remote:
            self._remote.reach()

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def exists(self, name: str = "") -> bool:
        """Whether a file or folder is there."""
        if self.local:
            with telling_of(self.local / name):
                return (self.local / name).exists()
        path = self._path(name)
        return bool(self._remote.ask(lambda there: there.get_file_info(path).type.value))

    def state(self, name: str) -> FileState | None:
        """How far a file has grown; None where there is none."""
        if self.local:
            # Asked of many thousand files: what is seldom needed is left out.
            try:
                found = os.stat(self._path(name))
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError:
                with telling_of(self._path(name)):
                    raise
            return FileState(found.st_size, found.st_mtime) if S_ISREG(found.st_mode) else None
        path = self._path(name)
        info = self._remote.ask(lambda there: there.get_file_info(path))
        return FileState(info.size, info.mtime and info.mtime.timestamp()) if info.is_file else None

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, sorted; empty where there is none."""
        if self.local:
            path = self.local / folder
            with telling_of(path):
                try:
                    return sorted(os.listdir(path))
                except FileNotFoundError:
                    if path.is_symlink():  # and leads nowhere
                        raise
                    return []
        return sorted(info.base_name for info in self._remote.infos(self._path(folder)))

    def files(self, folder: str = "") -> dict[str, FileState]:
        """The files in a folder by name, sorted, without the folders in it; empty where there is none."""
        from pyarrow.fs import FileSelector, LocalFileSystem

        if self.local:
            with telling_of(self.local / folder):
                infos = LocalFileSystem().get_file_info(FileSelector(str(self.local / folder), allow_not_found=True))
        else:
            infos = self._remote.infos(self._path(folder))
        files = sorted((info for info in infos if info.is_file), key=lambda info: info.base_name)
        return {info.base_name: FileState(info.size, info.mtime and info.mtime.timestamp()) for info in files}

    def tree(self, folder: str = "") -> dict[str, FileState]:
        """The files in a folder and in those in it, by their paths from there; empty where there is none. Of an object
        store that is a request for every thousand."""
        from pyarrow.fs import FileSelector, LocalFileSystem

        root = self._path(folder)
        if self.local:
            with telling_of(root):
                infos = LocalFileSystem().get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
        else:
            infos = self._remote.infos(root, recursive=True)
        files = (info for info in infos if info.is_file)
        return {
            info.path[len(root) + 1 :]: FileState(info.size, info.mtime and info.mtime.timestamp()) for info in files
        }

    def usage(self) -> tuple[int, int]:
        """How many files there are in it and in the folders in it, and their bytes."""
        files = self.tree()
        return len(files), sum(state.size_bytes for state in files.values())

    def each(self, call: Callable[[Thing], Answer], things: Iterable[Thing]) -> list[Answer]:
        """What a call gives of each thing, in their order; where a request takes long, several are made at once. The
        first that raises ends it."""
        if self.local or current_thread().name.startswith(_THREADS):
            return [call(thing) for thing in things]
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix=_THREADS) as pool:
            return [*pool.map(call, things)]

    def read(self, name: str, start: int = 0) -> bytes:
        """A file's bytes, from a place on; raises FileNotFoundError where there is none."""
        if self.local is None:
            return cast(bytes, self._remote.read(self._path(name), start))
        with telling_of(self.local / name, missing=False), open(_plain(self.local / name), "rb") as file:
            file.seek(start)
            return file.read()

    def pieces(self, name: str) -> Iterator[bytes]:
        """A file's bytes, some at a time; raises FileNotFoundError where there is none."""
        if self.local is None:
            yield from self._remote.pieces(self._path(name))
            return
        with telling_of(self.local / name, missing=False), open(_plain(self.local / name), "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    @contextmanager
    def fetched(self, name: str) -> Iterator[IO[bytes]]:
        """A file to read from anywhere in it, on this machine while the block lasts; raises FileNotFoundError where
        there is none."""
        if self.local:
            with telling_of(self.local / name, missing=False), open(_plain(self.local / name), "rb") as file:
                yield file
            return
        with tempfile.TemporaryFile() as copy:
            for piece in self.pieces(name):
                copy.write(piece)
            copy.seek(0)
            yield copy

    def open(self, name: str) -> Any:
        """A file to read parts of, as pyarrow takes it; raises FileNotFoundError where there is none."""
        if self.local is None:
            path = self._path(name)
            return self._remote.ask(lambda there: there.open_input_file(path))
        from pyarrow import OSFile

        with telling_of(self.local / name, missing=False):
            return OSFile(str(_plain(self.local / name)))

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write, and to read again; it appears whole, when the block ends without an error."""
        if self.local is None:
            with tempfile.TemporaryFile() as file:
                yield file
                self._remote.send(file, self._path(name))
            return
        with telling_of(self.local / name):
            yield from self._create_beside(self.local / name)

    @staticmethod
    def _create_beside(path: Path) -> Iterator[IO[bytes]]:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            # Made here or not at all: what was put there beforehand, such as a link elsewhere, is not written into.
            with open(beside, "x+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    def write(self, name: str, data: bytes | str) -> None:
        """Writes a whole file."""
        with self.create(name) as file:
            file.write(data.encode(errors="backslashreplace") if isinstance(data, str) else data)

    def link(self, name: str, source: Storage, file: str) -> bool:
        """Gives a file of another storage a second name here, and whether that could be done: both on one disk, and the
        file still there."""
        if self.local is None or source.local is None:
            return False
        path = self.local / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(source.local / file, path, follow_symlinks=False)
        except OSError:  # such as of a file system without hard links, or that allows no more of this file
            return False
        return True

    def append(self, name: str, data: str) -> None:
        """Adds text to the end of a file, which `read_appended` reads."""
        added = data.encode(errors="backslashreplace")
        if self.local is None:
            self._grown(name).append(added)
            return
        path = self.local / name
        with telling_of(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(_plain(path), "ab") as file:
                file.write(added)

    def read_appended(self, name: str, start: int = 0) -> bytes:
        """The bytes of a file that is appended to, from a place on; raises FileNotFoundError where there is none."""
        return self.read(name, start) if self.local else self._grown(name).read(start)

    def join(self, name: str) -> None:
        """Makes one object of a file that was appended to, for whoever reads it without us; on a disk it is one."""
        if self.local is None:
            self._grown(name).join()
            self._growing.pop(self._path(name))

    def _grown(self, name: str) -> GrowingFile:
        return self._growing.setdefault(self._path(name), GrowingFile(self, name))

    def open_stream(self, name: str) -> IO[bytes]:
        """A file that grows: on a local disk what is flushed can be read at once, on an object store once it is
        sent."""
        if self.local is None:
            return tempfile.TemporaryFile()
        path = self.local / name
        with telling_of(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            return open(_plain(path), "wb")

    def send(self, stream: IO[bytes], name: str) -> None:
        """Puts a stream that grows no more into its place; on a local disk it is there."""
        if self._remote:
            self._remote.send(stream, self._path(name))

    def rename(self, name: str, to: str) -> None:
        """Moves a file or folder into its place."""
        if self.local:
            with telling_of(self.local / to):
                os.replace(self.local / name, self.local / to)
                _sync_folder(self.local)
        else:
            self._remote.filesystem.move(self._path(name), self._path(to))

    def delete(self, name: str) -> None:
        """Removes a file or a folder with all in it; nothing where there is none."""
        if self.local:
            path = self.local / name
            with telling_of(path):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        else:
            self._remote.delete(self._path(name))

    def delete_leftovers(self, is_alive: Callable[[int], bool]) -> None:
        """Remove the unfinished files of dead processes, at any depth; only local folders have some."""
        for folder, _, names in os.walk(self.local) if self.local else ():
            for name in names:
                if (written := _BESIDE.fullmatch(name)) and not is_alive(int(written["pid"])):
                    with telling_of(Path(folder, name)):
                        Path(folder, name).unlink(missing_ok=True)

    def upload(self, folder: Path, to: str = "") -> None:
        """Copies a local folder here."""
        if self.local:
            shutil.copytree(folder, self.local / to, dirs_exist_ok=True)
        else:
            self._remote.upload(folder, self._path(to))


def _plain(path: Path) -> Path:
    """The path; raises OSError where something lies there that would hold whoever opens it, or never end."""
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if not S_ISREG(mode):
            raise OSError(errno.EISDIR if S_ISDIR(mode) else errno.ENXIO, "it is no file")
    return path


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
