"""Files of a remote store: an object store, or another file system that pyarrow or fsspec open by a
URL."""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from pathlib import Path
from threading import current_thread
from typing import IO, Any, cast

from orchestrator.errors import StorageError
from orchestrator.storage.backend import Answer, Item
from orchestrator.storage.file_states import FileState, make_tree
from orchestrator.storage.remote_filesystem import CONNECTIONS
from orchestrator.storage.remote_requests import RemoteRequests

_THREADS = "requests"
"""Name of the threads that send requests in parallel."""
_PIECE_BYTES = 32 * 2**20


class RemoteFiles:
    """The files of a remote store, as a backend of `Storage`. The folders of a storage share it.

    A file is uploaded in one operation. Its data stays on the local disk until it is sent, so that
    every request can be repeated.

    Attributes:
        root: Path of the location in the store.
    """

    def __init__(self, location: str) -> None:
        self._requests = RemoteRequests(location)
        self.root = self._requests.root

    @property
    def filesystem(self) -> Any:
        return self._requests.filesystem

    @property
    def verifies_uploads(self) -> bool:
        """True for S3, which compares the checksum that pyarrow sends."""
        return self._is_s3

    @property
    def _is_s3(self) -> bool:
        return bool(self.filesystem.type_name == "s3")

    def get_local_path(self, path: str) -> None:
        """Return None: the files are not on this machine."""

    def reach(self, path: str) -> None:
        self._requests.reach(path)

    def check_present(self, path: str) -> None:
        """Do nothing: a store has no folders that can be unmounted."""

    def map(self, call: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Call the function in threads; one by one in such a thread, so that nested calls do not
        multiply the connections."""
        if current_thread().name.startswith(_THREADS):
            return [call(item) for item in items]
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix=_THREADS) as pool:
            return [*pool.map(call, items)]

    # Listing

    def exists(self, path: str) -> bool:
        return bool(self._read_info(path).type.value)

    def read_state(self, path: str) -> FileState | None:
        info = self._read_info(path)
        return FileState.from_info(info) if info.is_file else None

    def _read_info(self, path: str) -> Any:
        return self._requests.send(lambda filesystem: filesystem.get_file_info(path))

    def list_names(self, path: str) -> list[str]:
        return sorted(info.base_name for info in self.list_infos(path))

    def list_tree(self, path: str) -> dict[str, FileState]:
        return make_tree(path, self.list_infos(path, recursive=True))

    def list_infos(self, path: str, recursive: bool = False) -> list[Any]:
        """Return pyarrow's infos of what is in a folder, or at any depth below it; empty if there
        is no folder."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(path, allow_not_found=True, recursive=recursive)
        try:
            return self._requests.send(
                lambda filesystem: cast(list[Any], filesystem.get_file_info(selector))
            )
        except NotADirectoryError:
            return []

    def read_link(self, path: str) -> None:
        """Return None: a store has no links."""

    def list_folder_links(self, path: str) -> dict[str, Path]:
        """Return nothing: a store has no links."""
        return {}

    # Reading

    def read(self, path: str, start: int, size: int | None = None) -> bytes:
        """Return up to `size` bytes of a file from byte `start` on, all by default."""

        def read(filesystem: Any) -> bytes:
            with filesystem.open_input_file(path) as file:
                file.seek(start)
                return cast(bytes, file.read(size))

        return self._requests.send(read)

    def read_chunks(self, path: str) -> Iterator[bytes]:
        start = 0
        while piece := self.read(path, start, _PIECE_BYTES):
            start += len(piece)
            yield piece

    @contextmanager
    def open_copy(self, path: str) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:
            for piece in self.read_chunks(path):
                file.write(piece)
            file.seek(0)
            yield file

    def open(self, path: str) -> Any:
        return self._requests.send(lambda filesystem: filesystem.open_input_file(path))

    # Writing

    @contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:
            yield file
            self.send(file, path)

    def send(self, file: IO[bytes], path: str) -> None:
        """Upload a file, in place of the former one if there is one.

        A failed upload never deletes the former file, which S3 keeps until an upload is complete.
        Another file system may have truncated it. There, an incomplete file is deleted only where
        none was before.
        """
        is_new = not self._is_s3 and not self.exists(path)

        def put(filesystem: Any) -> None:
            file.seek(0)
            # By default, pyarrow compresses a file whose name ends in .gz.
            with filesystem.open_output_stream(path, compression=None) as stream:
                shutil.copyfileobj(file, stream, _PIECE_BYTES)

        try:
            self._requests.send(put)
        except StorageError:
            if is_new:
                with suppress(OSError):
                    self.filesystem.delete_file(path)
            raise

    def append(self, path: str, data: bytes) -> None:
        """Upload the file again with the data at its end."""
        before = b""
        with suppress(FileNotFoundError):
            before = self.read(path, 0)
        with self.create(path) as file:
            file.write(before + data)

    def open_stream(self, path: str, start: bytes) -> IO[bytes]:
        """Raise UnsupportedOperation: a file of a store cannot grow."""
        raise UnsupportedOperation(f"{path} is on a remote store, where a file cannot grow")

    def link(self, path: str, source: Path) -> bool:
        """Return False: a store has no links."""
        return False

    def rename(self, path: str, new_path: str) -> None:
        """Raise UnsupportedOperation: an object store cannot rename a folder."""
        raise UnsupportedOperation(f"{path} is on a remote store, which cannot rename a folder")

    def delete(self, path: str) -> None:
        def delete(filesystem: Any) -> None:
            kind = filesystem.get_file_info(path).type.name
            with suppress(FileNotFoundError):
                if kind == "Directory":
                    filesystem.delete_dir(path)
                elif kind != "NotFound":
                    filesystem.delete_file(path)

        self._requests.send(delete)

    def list_unfinished(self, path: str) -> dict[str, int]:
        """Return nothing: an upload leaves no unfinished file."""
        return {}
