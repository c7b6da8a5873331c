"""A checkpoint's file is written: its sums are taken beside the writing, and what lies in the storage then is read
back."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, NamedTuple, cast
from zlib import crc32

import torch

from orchestrator.checkpoint.verification import of_another_size
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage

_PIECE_BYTES = 2**20
_WAITING = 4
"""How many pieces of a file may wait to be summed up."""


class Sums(NamedTuple):
    """What is known of the bytes that a file should have."""

    bytes: int
    sha256: str
    crc32: int


class SummingWriter:
    """Passes bytes on and takes their sums: a thread does, from copies, where they are more than a piece."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._thread: ThreadPoolExecutor | None = None
        self._size, self._sha256, self._crc32 = 0, hashlib.sha256(), 0
        self._gathered, self._waiting = bytearray(), deque[Future[None]]()
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            try:
                self._file.write(piece)
            except OSError as error:  # of which torch would say less
                self.failure = error
                raise
            self._gathered += piece
            if len(self._gathered) >= _PIECE_BYTES:
                self._hand_over()
        self._size += len(view)
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def sums(self) -> Sums:
        """Of all that was written; nothing is written after it."""
        for summed_up in self._waiting:
            summed_up.result()
        if self._thread:
            self._thread.shutdown()
        self._sum_up(self._gathered)
        return Sums(self._size, self._sha256.hexdigest(), self._crc32)

    def _hand_over(self) -> None:
        if len(self._waiting) == _WAITING:
            self._waiting.popleft().result()
        self._thread = self._thread or ThreadPoolExecutor(1)
        self._waiting.append(self._thread.submit(self._sum_up, self._gathered))
        self._gathered = bytearray()

    def _sum_up(self, piece: bytearray) -> None:
        self._sha256.update(piece)
        self._crc32 = crc32(piece, self._crc32)


def write_file(storage: Storage, folder: str, file: str, fill: Callable[[SummingWriter], None]) -> dict[str, Any]:
    """Writes a file of a checkpoint, as `fill` does it, and returns the manifest's entry for it. Raises CheckpointError
    where it is not there then as it was written."""
    with storage.create(f"{folder}/{file}") as stream:
        writer = SummingWriter(stream)
        fill(writer)
    sums = writer.sums()
    entry = {"sha256": sums.sha256, "bytes": sums.bytes}
    # A store that verifies what it is sent is asked for the size alone.
    reason = (
        of_another_size(storage, folder, file, entry)
        if storage.verifies_uploads
        else _unlike(storage, folder, file, sums)
    )
    if reason:
        raise CheckpointError(
            f"checkpoint {storage}/{folder}: {reason}. It was only just written there: look at the storage"
        )
    return entry


def write_object(storage: Storage, folder: str, file: str, content: Any) -> dict[str, Any]:
    """As `write_file`, with what torch.save makes of an object."""

    def fill(writer: SummingWriter) -> None:
        try:
            torch.save(content, cast(IO[bytes], writer))  # of which it wants `write` and `flush` alone
        except RuntimeError:
            if writer.failure is not None:
                raise writer.failure from None
            raise

    return write_file(storage, folder, file, fill)


def _unlike(storage: Storage, folder: str, file: str, written: Sums) -> str | None:
    """How a file, which is read in pieces, differs from what was written; None where it does not."""
    size = found = 0
    try:
        for piece in storage.pieces(f"{folder}/{file}"):
            size += len(piece)
            found = crc32(piece, found)
    except FileNotFoundError:
        return f"{file} is missing"
    whole = (size, found) == (written.bytes, written.crc32)
    return None if whole else f"{file} is damaged ({size} bytes, {written.bytes} were written)"
