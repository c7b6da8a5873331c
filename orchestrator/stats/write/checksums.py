"""Checksums in Arrow streams and Parquet files, where other readers ignore them.

A stream has them in the padding after each message's metadata, a Parquet file in the space for the footer's signature.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from os import SEEK_END
from typing import IO, Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.storage.stored_data import log_omission

END_OF_STREAM = struct.pack("<Ii", 0xFFFFFFFF, 0)
"""Last bytes of a complete stream."""
_CHECKSUM_MARKER = b"HYcr"
_CHECKSUM_SIZE = len(_CHECKSUM_MARKER) + 4
_ROW_GROUP_SIZE = 2**17
"""Number of rows in a row group."""
_PARQUET_TRAILER_SIZE = 8
"""Bytes after a footer: its length and `PAR1`."""


def add_checksum(message: pa.Buffer) -> bytes:
    """Add the CRC-32 of a serialized message's metadata and body to it."""
    data = memoryview(message)
    marker, size = struct.unpack_from("<Ii", data)
    metadata, body = data[8 : 8 + size], data[8 + size :]
    return b"".join((struct.pack("<Ii", marker, size + _CHECKSUM_SIZE), metadata, _make_checksum(metadata, body), body))


def _make_checksum(*data: bytes | memoryview | pa.Buffer) -> bytes:
    checksum = 0
    for part in data:
        checksum = crc32(part, checksum)
    return _CHECKSUM_MARKER + struct.pack("<I", checksum)


def read_stream_schema(stream: Any, path: str) -> pa.Schema | None:
    """Return the schema at the beginning of a stream; None if it is cut short, or damaged, which logs a warning."""
    message = _read_message(stream)
    with suppress(pa.ArrowException, OSError):
        if message is not None and _is_intact(message):
            return pa.ipc.read_schema(message).remove_metadata()
    stream.seek(0)
    if message is not None or _read_rest(stream).endswith(END_OF_STREAM):
        log_omission(path, "all of its rows are left out: its beginning is damaged")
    return None


class Stream(NamedTuple):
    """The intact part of an Arrow stream."""

    schema: pa.Schema | None
    """None if the beginning is missing or damaged."""
    batches: list[pa.RecordBatch]
    end: int
    """Offset in the file after the last batch."""


def read_stream(
    data: bytes, path: str, schema: pa.Schema | None = None, start: int = 0, *, has_ended: bool = False
) -> Stream:
    """Read the complete batches of a stream. `data` begins at the file's byte `start`; after 0, pass the schema.

    Warns of damage. A message that a kill cut short at the end is not damage, unless the stream `has_ended`.
    """
    stream, batches = pa.BufferReader(data), list[pa.RecordBatch]()
    schema = schema or read_stream_schema(stream, path)
    if schema is None:
        return Stream(None, [], start)
    while True:
        end = stream.tell()
        message = _read_message(stream)
        batch = None if message is None else _decode_batch(message, schema)
        if batch is None:
            break
        batches.append(batch)
    rest, end = data[end:], start + end
    if message is not None or (rest != END_OF_STREAM and rest.endswith(END_OF_STREAM)):
        log_omission(path, f"the rows after byte {end} are left out: their checksum does not match")
    elif has_ended and rest != END_OF_STREAM:
        log_omission(path, f"it was cut short at byte {start + len(data)}; the rows after byte {end} are missing")
    return Stream(schema, batches, end)


def _decode_batch(message: Any, schema: pa.Schema) -> pa.RecordBatch | None:
    with suppress(pa.ArrowException, OSError):
        if _is_intact(message):
            return pa.ipc.read_record_batch(message, schema)
    return None


def _is_intact(message: Any) -> bool:
    metadata = memoryview(message.metadata)
    body = b"" if message.body is None else message.body
    return _make_checksum(metadata[:-_CHECKSUM_SIZE], body) == bytes(metadata[-_CHECKSUM_SIZE:])


def _read_rest(stream: Any) -> bytes:
    # pyarrow's `read()` fails on a file that has grown since it was opened.
    return b"".join(iter(partial(stream.read, 1 << 20), b""))


def _read_message(stream: Any) -> Any:
    try:
        return pa.ipc.read_message(stream)
    except (EOFError, OSError, pa.ArrowException):
        return None


def write_parquet(tables: Iterable[pa.Table], file: IO[bytes]) -> None:
    """Write tables with the same columns one after the other, with the CRC-32 of each page and of the footer.

    `file` must be readable too. Only text columns have dictionaries: measurements hardly repeat.
    """
    tables = iter(tables)
    first = next(tables)
    texts = [field.name for field in first.schema if pa.types.is_string(field.type)]
    with pq.ParquetWriter(
        file, first.schema, compression="zstd", use_dictionary=texts, write_page_checksum=True
    ) as writer:
        for table in chain([first], tables):
            writer.write_table(table, _ROW_GROUP_SIZE)
    footer = _read_footer(file)
    file.seek(-_PARQUET_TRAILER_SIZE, SEEK_END)
    file.write(_make_checksum(footer) + struct.pack("<I", len(footer) + _CHECKSUM_SIZE) + b"PAR1")


def check_footer(file: Any) -> bool:
    """Return whether a Parquet file has a checksum of its footer. Raises ArrowInvalid if it does not match.

    Reads only the footer, and returns the file to its beginning.
    """
    footer = _read_footer(file)
    file.seek(0)
    has_checksum = footer[-_CHECKSUM_SIZE:-4] == _CHECKSUM_MARKER
    if has_checksum and footer[-_CHECKSUM_SIZE:] != _make_checksum(footer[:-_CHECKSUM_SIZE]):
        raise pa.ArrowInvalid("the checksum of its footer does not match")
    return has_checksum


def verify_parquet(file: Any) -> bool:
    """Read a whole Parquet file, and return whether it has a checksum of its footer.

    Raises ArrowInvalid or OSError if a checksum does not match.
    """
    has_checksum = check_footer(file)
    parquet = pq.ParquetFile(file, page_checksum_verification=True)
    for group in range(parquet.num_row_groups):
        parquet.read_row_group(group)
    return has_checksum


def _read_footer(file: Any) -> bytes:
    size = file.seek(0, SEEK_END)
    file.seek(max(size - _PARQUET_TRAILER_SIZE, 0))
    end = file.read()
    length = struct.unpack_from("<I", end)[0] if end[4:] == b"PAR1" else size
    if length > size - 2 * _PARQUET_TRAILER_SIZE:
        raise pa.ArrowInvalid("it is not a Parquet file, or its end is missing")
    file.seek(size - _PARQUET_TRAILER_SIZE - length)
    return bytes(file.read(length))
