"""Write the files of a checkpoint: hashed while they are written, then read back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import IO, Any, cast

import torch

from orchestrator.checkpoint.manifest import check_file
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage


class HashingWriter:
    """Writer that hashes its output."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._size, self._sha256 = file, 0, hashlib.sha256()
        self.failure: OSError | None = None
        """Error of the file system; torch.save raises a RuntimeError that does not say it."""

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.failure = error
            raise
        self._sha256.update(data)
        size = memoryview(data).nbytes
        self._size += size
        return size

    def flush(self) -> None:
        self._file.flush()

    def make_entry(self) -> dict[str, Any]:
        """Return the file's manifest entry."""
        return {"sha256": self._sha256.hexdigest(), "bytes": self._size}


def write_file(storage: Storage, folder: str, file: str, fill: Callable[[HashingWriter], None]) -> dict[str, Any]:
    """Write a file of a checkpoint with `fill`, verify it, and return its entry; raises CheckpointError."""
    with storage.create(f"{folder}/{file}") as stream:
        writer = HashingWriter(stream)
        fill(writer)
    entry = writer.make_entry()
    # A store that verifies uploads need not send the file back.
    reason = check_file(storage, folder, file, entry, check_hashes=not storage.verifies_uploads)
    if reason:
        raise CheckpointError(f"checkpoint {storage}/{folder}: {reason}. It was just written: check the storage")
    return entry


def write_object(storage: Storage, folder: str, file: str, content: Any) -> dict[str, Any]:
    """Write an object with torch.save, verify it, and return its entry; raises CheckpointError."""

    def fill(writer: HashingWriter) -> None:
        try:
            torch.save(content, cast(IO[bytes], writer))  # it needs only `write` and `flush`
        except RuntimeError:
            if writer.failure is not None:
                raise writer.failure from None
            raise

    return write_file(storage, folder, file, fill)
