"""Checksums in Arrow streams: each message ends its metadata with one, where Arrow allows padding, so that any reader reads it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pyarrow as pa

from orchestrator.storage.stored_data import left_out

END = struct.pack("<Ii", 0xFFFFFFFF, 0)
"""What ends a stream."""
_MARK = b"HYcr"
_SEAL = len(_MARK) + 4


def sealed(message: pa.Buffer) -> bytes:
    """A message of a stream, as `serialize` gives it, with the CRC-32 of its metadata and its body."""
    data = memoryview(message)
    marker, size = struct.unpack_from("<Ii", data)
    metadata, body = data[8 : 8 + size], data[8 + size :]
    seal = _MARK + struct.pack("<I", crc32(body, crc32(metadata)))
    return b"".join((struct.pack("<Ii", marker, size + _SEAL), metadata, seal, body))


def is_sealed(message: Any) -> bool:
    """Whether a message that was read carries a checksum; those of earlier versions carry none."""
    return bool(message.metadata[-_SEAL:-4].to_pybytes() == _MARK)


def is_whole(message: Any) -> bool:
    """Whether the checksum of a sealed message holds."""
    metadata = memoryview(message.metadata)
    body = b"" if message.body is None else message.body
    return bool(struct.pack("<I", crc32(body, crc32(metadata[:-_SEAL]))) == bytes(metadata[-4:]))


def schema_in(stream: Any, place: str) -> tuple[pa.Schema, bool] | None:
    """The schema at the beginning of a stream, and whether its messages are sealed; None, which is said, where that is damaged."""
    try:
        message = pa.ipc.read_message(stream)
        is_sealed_stream = is_sealed(message)
        if is_sealed_stream and not is_whole(message):
            raise pa.ArrowInvalid("its checksum does not hold")
        return pa.ipc.read_schema(message), is_sealed_stream
    except EOFError:
        return None
    except (pa.ArrowException, OSError) as error:
        left_out(place, f"all of its rows are left out: {error}")
        return None


def whole_batches(stream: Any, schema: pa.Schema, is_sealed_stream: bool, place: str) -> Iterator[pa.RecordBatch]:
    """The batches from where a stream stands, without those whose checksum does not hold, which is said; raises EOFError,
    ArrowInvalid or OSError where it ends without its end."""
    while True:
        begin = stream.tell()
        message = pa.ipc.read_message(stream)
        if is_sealed_stream and not (is_sealed(message) and is_whole(message)):
            left_out(place, f"the rows in bytes {begin} to {stream.tell()} are left out: their checksum does not hold")
            continue
        yield pa.ipc.read_record_batch(message, schema)
