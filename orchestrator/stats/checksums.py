"""Checksums of rows: a message of an Arrow stream ends its metadata with one, where Arrow allows padding, and a Parquet file its
footer, where that allows a signature; so any reader reads both."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from os import SEEK_END
from typing import IO, Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.storage.stored_data import left_out

END = struct.pack("<Ii", 0xFFFFFFFF, 0)
"""What ends a stream."""
_MARK = b"HYcr"
_SEAL = len(_MARK) + 4
_PARQUET_END = 8
"""Bytes behind a footer: its length and `PAR1`."""


def sealed(message: pa.Buffer) -> bytes:
    """A message of a stream, as `serialize` gives it, with the CRC-32 of its metadata and its body."""
    data = memoryview(message)
    marker, size = struct.unpack_from("<Ii", data)
    metadata, body = data[8 : 8 + size], data[8 + size :]
    return b"".join((struct.pack("<Ii", marker, size + _SEAL), metadata, _seal(metadata, body), body))


def _seal(*data: bytes | memoryview | pa.Buffer) -> bytes:
    checksum = 0
    for part in data:
        checksum = crc32(part, checksum)
    return _MARK + struct.pack("<I", checksum)


def is_sealed(message: Any) -> bool:
    """Whether a message that was read carries a checksum; those of earlier versions carry none."""
    return bool(message.metadata[-_SEAL:-4].to_pybytes() == _MARK)


def is_whole(message: Any) -> bool:
    """Whether the checksum of a sealed message holds."""
    metadata = memoryview(message.metadata)
    body = b"" if message.body is None else message.body
    return _seal(metadata[:-_SEAL], body) == bytes(metadata[-_SEAL:])


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


def write_parquet(table: pa.Table, file: IO[bytes], row_group_size: int) -> None:
    """Writes a table with the CRC-32 of each page and of the footer; `file` is one to write and to read."""
    pq.write_table(table, file, row_group_size=row_group_size, write_page_checksum=True)
    footer = _footer(file)
    file.seek(-_PARQUET_END, SEEK_END)
    file.write(_seal(footer) + struct.pack("<I", len(footer) + _SEAL) + b"PAR1")


def check_footer(file: Any) -> None:
    """Raises ArrowInvalid where the checksum of a Parquet file's footer does not hold; those of earlier versions carry none. Reads the
    footer alone, and leaves the file at its beginning."""
    footer = _footer(file)
    file.seek(0)
    if footer[-_SEAL:-4] == _MARK and footer[-_SEAL:] != _seal(footer[:-_SEAL]):
        raise pa.ArrowInvalid("the checksum of its footer does not hold")


def _footer(file: Any) -> bytes:
    size = file.seek(0, SEEK_END)
    file.seek(max(size - _PARQUET_END, 0))
    end = file.read()
    length = struct.unpack_from("<I", end)[0] if end[4:] == b"PAR1" else size
    if length > size - 2 * _PARQUET_END:
        raise pa.ArrowInvalid("it is no Parquet file, or its end is missing")
    file.seek(size - _PARQUET_END - length)
    return bytes(file.read(length))
