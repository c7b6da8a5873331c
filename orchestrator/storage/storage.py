"""Storage: files in a folder or under a URL, read and written the same way."""

import copy
import posixpath
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Self

from orchestrator.errors import UsageError
from orchestrator.storage.backend import Answer, Backend, Item
from orchestrator.storage.file_states import FileState
from orchestrator.storage.local_files import LocalFiles
from orchestrator.storage.location import (
    get_parent_location,
    is_file_url,
    is_url,
    join_location,
    read_file_url,
    split_options,
    with_access_of,
    without_credentials,
)
from orchestrator.storage.remote_files import RemoteFiles


class Storage:
    """A folder on this machine, or a location that pyarrow or fsspec supports (`s3://bucket/runs`).

    Its methods take names of files and folders within it, such as `stats/rank=0`. No reader sees an
    incomplete file: local files are renamed once they are written, remote files are uploaded in one
    operation. Every method raises StorageError if the store fails.

    Args:
        location: A folder, a `file:` URL, or a URL with its options and credentials.

    Attributes:
        location: Location with credentials, for other processes; `str` hides them.
        root: Path of the location in its file system: an absolute path on this machine.

    Raises:
        UsageError: The location is empty, unknown or wrong.
    """

    def __init__(self, location: str | Path) -> None:
        text = str(location)
        if not text:
            raise UsageError("the path of a run or of a storage is empty; write . for this folder")
        if is_file_url(text):
            text = read_file_url(text)
        self._backend: Backend
        if is_url(text):
            remote = RemoteFiles(text)
            self._backend = remote
            self.location = text
            self.root = remote.root
        else:
            self._backend = LocalFiles()
            self.location = str(Path(text).expanduser().absolute())
            self.root = self.location

    # Locations

    def at(self, path: str) -> Self:
        """Return the storage at another path, with the options and credentials of this one."""
        return type(self)(with_access_of(self.location, path))

    def __truediv__(self, part: str) -> Self:
        return self._move(join_location(self.location, part), self._path(part))

    @property
    def parent(self) -> Self:
        """The folder around; a bucket and the root of this machine are their own."""
        location = get_parent_location(self.location)
        if location == self.location:
            return self
        return self._move(location, posixpath.dirname(self.root))

    def _move(self, location: str, root: str) -> Self:
        """Return another folder of the same file system, which shares the connection."""
        moved = copy.copy(self)
        moved.location = location
        moved.root = root
        return moved

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    @property
    def read_interval_s(self) -> float:
        """Seconds between two reads of files that grow; each read of an object store costs
        requests."""
        return 1.0 if self.local else 10.0

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
    def local(self) -> Path | None:
        """The folder on this machine; None for a remote location."""
        return self._backend.get_local_path(self.root)

    # The file system

    @property
    def filesystem(self) -> Any:
        """pyarrow's file system that contains `root`; None for a local folder."""
        return self._backend.filesystem

    @property
    def verifies_uploads(self) -> bool:
        """True if the store verifies uploads, as S3 does with the checksum that pyarrow sends."""
        return self._backend.verifies_uploads

    def reach(self) -> None:
        """Raise UsageError if a remote store does not answer."""
        self._backend.reach(self.root)

    def check_present(self) -> None:
        """Raise StorageError if the storage's own folder is missing, for example because a share is
        unmounted.

        Files written there would be lost when it is mounted again.
        """
        self._backend.check_present(self.root)

    def map(self, call: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return the results of a function for all items, in order; remote calls run
        concurrently."""
        return self._backend.map(call, items)

    # Listing

    def exists(self, name: str = "") -> bool:
        """Return whether there is a file or a folder; without a name, the storage's own folder."""
        return self._backend.exists(self._path(name))

    def state(self, name: str) -> FileState | None:
        """Return the state of a file; None if there is none."""
        return self._backend.read_state(self._path(name))

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names in a folder; empty if there is none."""
        return self._backend.list_names(self._path(folder))

    def tree(self, folder: str = "") -> dict[str, FileState]:
        """Return all files below a folder by relative path, sorted: one request per thousand."""
        return self._backend.list_tree(self._path(folder))

    def list_unfinished(self) -> dict[str, int]:
        """Return the files in a local folder, at any depth, that a process has begun to write and has
        not renamed: its pid by relative path. A remote upload leaves none."""
        return self._backend.list_unfinished(self.root)

    @property
    def link_target(self) -> Path | None:
        """The folder that this storage is a link to; None if it is no link."""
        return self._backend.read_link(self.root)

    def folder_links(self) -> dict[str, Path]:
        """Return the links to folders in a local folder, at any depth: the target of each by
        relative path."""
        return self._backend.list_folder_links(self.root)

    # Reading

    def read(self, name: str, start: int = 0) -> bytes:
        """Return a file's bytes from `start` on; raises FileNotFoundError."""
        return self._backend.read(self._path(name), start)

    def read_chunks(self, name: str) -> Iterator[bytes]:
        """Yield a file's bytes in pieces that fit into memory; raises FileNotFoundError."""
        return self._backend.read_chunks(self._path(name))

    def open_copy(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file for reading, or a local copy of a remote file; raises FileNotFoundError."""
        return self._backend.open_copy(self._path(name))

    def open(self, name: str) -> Any:
        """Open a file for random access by pyarrow; raises FileNotFoundError."""
        return self._backend.open(self._path(name))

    # Writing

    @property
    def _writer(self) -> Backend:
        """The backend, for operations that write."""
        return self._backend

    def create(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a temporary file for writing and reading; it gets its name after the block, unless
        the block fails."""
        return self._writer.create(self._path(name))

    def write(self, name: str, data: bytes | str) -> None:
        """Write a whole file; text in UTF-8, with backslashes for what it cannot encode."""
        content = _encode(data) if isinstance(data, str) else data
        with self.create(name) as file:
            file.write(content)

    def append(self, name: str, data: str) -> None:
        """Append text to a file. A remote file is uploaded again, so keep it small; it must have
        one writer."""
        self._writer.append(self._path(name), _encode(data))

    def open_stream(self, name: str, start: bytes) -> IO[bytes]:
        """Open a local file for incremental writing. Readers never see it without the bytes
        `start`."""
        writer = self._writer
        self.check_present()
        return writer.open_stream(self._path(name), start)

    def link(self, name: str, source: "Storage", file: str) -> bool:
        """Hard-link a file of another storage; return False if that is impossible or the file is
        missing."""
        writer = self._writer
        folder = source.local
        return folder is not None and writer.link(self._path(name), folder / file)

    def rename(self, name: str, to: str) -> None:
        """Rename a file or a folder of a local storage, and replace a file that has the name."""
        self._writer.rename(self._path(name), self._path(to))

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its content, if it exists.

        Only a link itself is deleted, never what it leads to. What cannot be deleted in a folder
        is left there with a warning.
        """
        self._writer.delete(self._path(name))


def _encode(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
