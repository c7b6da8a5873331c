"""Writing a file of a checkpoint: it is hashed while it is written, and then read back."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, cast

import torch

from orchestrator.checkpoint.manifest import check_file
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage

_PIECE_BYTES = 2**20
_MAX_QUEUED = 4
"""Pieces of a file that may wait to be hashed."""


class HashingWriter:
    """A writer that hashes what it writes: in a thread, from copies, once that is more than a piece."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._thread: ThreadPoolExecutor | None = None
        self._size, self._sha256 = 0, hashlib.sha256()
        self._buffer, self._queued = bytearray(), deque[Future[None]]()
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            try:
                self._file.write(piece)
            except OSError as error:  # torch would not say which
                self.failure = error
                raise
            self._buffer += piece
            if len(self._buffer) >= _PIECE_BYTES:
                self._hash_in_thread()
        self._size += len(view)
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def entry(self) -> dict[str, Any]:
        """Return the manifest's entry; nothing may be written afterwards."""
        for hashed in self._queued:
            hashed.result()
        if self._thread:
            self._thread.shutdown()
        self._sha256.update(self._buffer)
        return {"sha256": self._sha256.hexdigest(), "bytes": self._size}

    def _hash_in_thread(self) -> None:
        if len(self._queued) == _MAX_QUEUED:
            self._queued.popleft().result()
        self._thread = self._thread or ThreadPoolExecutor(1)
        self._queued.append(self._thread.submit(self._sha256.update, self._buffer))
        self._buffer = bytearray()


def write_file(storage: Storage, folder: str, file: str, fill: Callable[[HashingWriter], None]) -> dict[str, Any]:
    """Write a file of a checkpoint with `fill`, verify it, and return its entry; raises CheckpointError."""
    with storage.create(f"{folder}/{file}") as stream:
        writer = HashingWriter(stream)
        fill(writer)
    entry = writer.entry()
    # A store that verifies uploads need not send the file back.
    reason = check_file(storage, folder, file, entry, hashed=not storage.verifies_uploads)
    if reason:
        raise CheckpointError(f"checkpoint {storage}/{folder}: {reason}. It was just written: check the storage")
    return entry


def write_object(storage: Storage, folder: str, file: str, content: Any) -> dict[str, Any]:
    """Write an object with torch.save, as `write_file` does."""

    def fill(writer: HashingWriter) -> None:
        try:
            torch.save(content, cast(IO[bytes], writer))  # it needs only `write` and `flush`
        except RuntimeError:
            if writer.failure is not None:
                raise writer.failure from None
            raise

    return write_file(storage, folder, file, fill)
