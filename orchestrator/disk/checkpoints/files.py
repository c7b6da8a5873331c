"""Files of checkpoints, verified when they are written."""

import hashlib
from collections.abc import Callable
from typing import IO, Any, cast

import torch

from orchestrator.disk.checkpoints.manifest import check_file
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage


def name_rank_file(rank: int) -> str:
    """Return the name of the file with the contents of a rank."""
    return f"rank-{rank:04d}.pt"


class HashingWriter:
    """Writer that hashes its output."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.sha256.update(data)
        size = memoryview(data).nbytes
        self.size += size
        return size

    def flush(self) -> None:
        self._file.flush()


def write_file(
    storage: Storage, folder: str, file: str, fill: Callable[[HashingWriter], None]
) -> dict[str, Any]:
    """Write a file of a checkpoint with `fill`, verify it, and return its entry; raises
    CheckpointError."""
    with storage.create(f"{folder}/{file}") as stream:
        writer = HashingWriter(stream)
        fill(writer)
    entry = {"sha256": writer.sha256.hexdigest(), "bytes": writer.size}
    if storage.verifies_uploads:
        return entry  # the store need not send the file back

    reason = check_file(storage, folder, file, entry)
    if reason:
        raise CheckpointError(
            f"checkpoint {storage}/{folder}: {reason}. It was just written: check the storage"
        )
    return entry


def write_object(storage: Storage, folder: str, file: str, content: Any) -> dict[str, Any]:
    """Write an object with torch.save, verify it, and return its entry; raises CheckpointError."""

    def fill(writer: HashingWriter) -> None:
        try:
            torch.save(content, cast(IO[bytes], writer))  # it needs only `write` and `flush`
        except RuntimeError as error:
            # An error of the file system, which the RuntimeError does not name.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise

    return write_file(storage, folder, file, fill)
