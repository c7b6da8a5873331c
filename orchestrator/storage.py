"""Storage: files under a folder or a URL, read and written the same way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from orchestrator.errors import UsageError


class FileState(NamedTuple):
    """How far a file has grown, and when it was last written."""

    size_bytes: int
    modified: float | None
    """Seconds since 1970, by the clock of whoever keeps the file; None where that does not say."""


class Storage:
    """A folder on this machine, or under any location pyarrow or fsspec knows (`s3://bucket/runs`).

    Runs in every process. Local files are written beside their place, synced and renamed, so that no reader ever meets
    half a file; object stores do this by themselves.
    """

    def __init__(self, location: str | Path) -> None:
        self.location = str(location)
        self._fs, root = _filesystem(self.location)
        self.root = root
        self.local = Path(root) if self._fs is None else None

    def __truediv__(self, part: str) -> Storage:
        return Storage(f"{self.location.rstrip('/')}/{part}")

    def __str__(self) -> str:
        return str(self.local) if self.local else self.location

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def exists(self, name: str = "") -> bool:
        """Whether a file or folder is there."""
        if self.local:
            return (self.local / name).exists()
        return bool(self._fs.get_file_info(self._path(name)).type.value)

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, sorted; empty where there is none."""
        if self.local:
            path = self.local / folder
            return sorted(os.listdir(path)) if path.is_dir() else []
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._path(folder), allow_not_found=True)
        return sorted(info.base_name for info in self._fs.get_file_info(selector))

    def files(self, folder: str = "") -> dict[str, FileState]:
        """The files in a folder by name, sorted, without the folders in it; empty where there is none."""
        if self.local:
            path = self.local / folder
            return dict(sorted(_files_in(path))) if path.is_dir() else {}
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._path(folder), allow_not_found=True)
        found = [info for info in self._fs.get_file_info(selector) if info.is_file]
        return {info.base_name: FileState(info.size, _seconds(info.mtime_ns)) for info in sorted(found, key=lambda info: info.base_name)}

    def read(self, name: str, start: int = 0) -> bytes:
        """A file's bytes, from a place on; raises FileNotFoundError where there is none."""
        with open(self.local / name, "rb") if self.local else self._fs.open_input_file(self._path(name)) as file:
            file.seek(start)
            return cast(bytes, file.read())

    def open(self, name: str) -> Any:
        """A file to read parts of, as pyarrow takes it; raises FileNotFoundError where there is none."""
        if self.local is None:
            return self._fs.open_input_file(self._path(name))
        from pyarrow import OSFile

        return OSFile(str(self.local / name))

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write; it appears whole, when the block ends without an error."""
        if self.local is None:
            try:
                with self._fs.open_output_stream(self._path(name)) as stream:
                    yield stream
            except BaseException:
                self.delete(name)
                raise
            return
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(beside, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)

    def write(self, name: str, data: bytes | str) -> None:
        """Writes a whole file."""
        with self.create(name) as file:
            file.write(data.encode() if isinstance(data, str) else data)

    def append(self, name: str, data: str) -> None:
        """Adds text to the end of a file; on an object store the file is written anew."""
        if self.local:
            path = self.local / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a") as file:
                file.write(data)
            return
        before = self.read(name) if self.exists(name) else b""
        self.write(name, before + data.encode())

    def open_stream(self, name: str) -> IO[bytes]:
        """A file that grows: on a local disk what is flushed can be read at once, on an object store once it is closed."""
        if self.local is None:
            return cast(IO[bytes], self._fs.open_output_stream(self._path(name)))
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "wb")

    def rename(self, name: str, to: str) -> None:
        """Moves a file or folder into its place."""
        if self.local:
            os.replace(self.local / name, self.local / to)
            _sync_folder(self.local)
        else:
            self._fs.move(self._path(name), self._path(to))

    def delete(self, name: str) -> None:
        """Removes a file or a folder with all in it; nothing where there is none."""
        if self.local:
            path = self.local / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        elif self.exists(name):
            info = self._fs.get_file_info(self._path(name))
            (self._fs.delete_dir if info.type.name == "Directory" else self._fs.delete_file)(info.path)

    def upload(self, folder: Path, to: str = "") -> None:
        """Copies a local folder here."""
        from pyarrow import fs

        fs.copy_files(str(folder), self._path(to), source_filesystem=fs.LocalFileSystem(), destination_filesystem=self._fs)


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def _files_in(folder: Path) -> Iterator[tuple[str, FileState]]:
    """The files of a local folder; one that goes while they are looked at is none."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file():
                    state = entry.stat()
                    yield entry.name, FileState(state.st_size, state.st_mtime)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _filesystem(location: str) -> tuple[Any, str]:
    if "://" not in location:
        return None, str(Path(location).expanduser().absolute())
    if location.startswith("file://"):
        return None, location.removeprefix("file://")
    from pyarrow import fs

    try:
        found, root = fs.FileSystem.from_uri(location)
    except Exception as from_pyarrow:
        try:
            import fsspec

            system, root = fsspec.core.url_to_fs(location)
            found = fs.PyFileSystem(fs.FSSpecHandler(system))
        except Exception as from_fsspec:
            raise UsageError(
                f"storage '{location}' cannot be opened: {from_pyarrow}; {from_fsspec}. "
                "Give a folder, or a URL that pyarrow or an installed fsspec package knows."
            ) from from_fsspec
    return found, root.rstrip("/")
