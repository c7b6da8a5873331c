"""Checksums in Arrow streams and Parquet files, in places that other readers ignore.

In a stream it is in the padding after a message's metadata, in a Parquet file in the space for a footer's signature.
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

END = struct.pack("<Ii", 0xFFFFFFFF, 0)
"""End of a stream."""
_MARK = b"HYcr"
_SEAL = len(_MARK) + 4
ROW_GROUP = 2**17
"""Rows of a row group."""
_PARQUET_END = 8
"""Bytes after a footer: its length and `PAR1`."""


def add_checksum(message: pa.Buffer) -> bytes:
    """Add the CRC-32 of its metadata and body to a serialized message."""
    data = memoryview(message)
    marker, size = struct.unpack_from("<Ii", data)
    metadata, body = data[8 : 8 + size], data[8 + size :]
    return b"".join((struct.pack("<Ii", marker, size + _SEAL), metadata, _seal(metadata, body), body))


def _seal(*data: bytes | memoryview | pa.Buffer) -> bytes:
    checksum = 0
    for part in data:
        checksum = crc32(part, checksum)
    return _MARK + struct.pack("<I", checksum)


def schema_in(stream: Any, path: str) -> pa.Schema | None:
    """Return the schema at the beginning of a stream; None if a kill cut it short, or with a warning if damaged."""
    message = _message(stream)
    with suppress(pa.ArrowException, OSError):
        if message is not None and _is_intact(message):
            return pa.ipc.read_schema(message).remove_metadata()
    stream.seek(0)
    if message is not None or _rest(stream).endswith(END):
        log_omission(path, "all of its rows are left out: its beginning is damaged")
    return None


class Stream(NamedTuple):
    """The intact part of an Arrow stream."""

    schema: pa.Schema | None
    """None if the beginning is missing or damaged."""
    batches: list[pa.RecordBatch]
    end: int
    """Place in the file after the last batch."""


def read_stream(
    data: bytes, path: str, schema: pa.Schema | None = None, start: int = 0, *, has_ended: bool = False
) -> Stream:
    """Read the whole batches of a stream, or those after the byte `start` of the file if the schema is known.

    Warns of damage. What a kill cut short at the end is not damage, unless the stream `has_ended`: then nothing may be
    missing.
    """
    stream, batches = pa.BufferReader(data), list[pa.RecordBatch]()
    schema = schema or schema_in(stream, path)
    if schema is None:
        return Stream(None, [], start)
    while True:
        end = stream.tell()
        message = _message(stream)
        batch = None if message is None else _batch(message, schema)
        if batch is None:
            break
        batches.append(batch)
    rest, end = data[end:], start + end
    if message is not None or (rest != END and rest.endswith(END)):
        log_omission(path, f"the rows after byte {end} are left out: their checksum does not match")
    elif has_ended and rest != END:
        log_omission(path, f"it was cut short at byte {start + len(data)}; the rows after byte {end} are missing")
    return Stream(schema, batches, end)


def _batch(message: Any, schema: pa.Schema) -> pa.RecordBatch | None:
    with suppress(pa.ArrowException, OSError):
        if _is_intact(message):
            return pa.ipc.read_record_batch(message, schema)
    return None


def _is_intact(message: Any) -> bool:
    metadata = memoryview(message.metadata)
    body = b"" if message.body is None else message.body
    return _seal(metadata[:-_SEAL], body) == bytes(metadata[-_SEAL:])


def _rest(stream: Any) -> bytes:
    # pyarrow's `read()` fails on a file that has grown past the size that it had when it was opened.
    return b"".join(iter(partial(stream.read, 1 << 20), b""))


def _message(stream: Any) -> Any:
    try:
        return pa.ipc.read_message(stream)
    except (EOFError, OSError, pa.ArrowException):
        return None


def write_parquet(tables: Iterable[pa.Table], file: IO[bytes]) -> None:
    """Write tables of the same columns below each other, with the CRC-32 of each page and of the footer.

    `file` can be written and read. Only text has dictionaries, as measurements hardly repeat.
    """
    tables = iter(tables)
    first = next(tables)
    texts = [field.name for field in first.schema if pa.types.is_string(field.type)]
    with pq.ParquetWriter(
        file, first.schema, compression="zstd", use_dictionary=texts, write_page_checksum=True
    ) as writer:
        for table in chain([first], tables):
            writer.write_table(table, ROW_GROUP)
    footer = _footer(file)
    file.seek(-_PARQUET_END, SEEK_END)
    file.write(_seal(footer) + struct.pack("<I", len(footer) + _SEAL) + b"PAR1")


def check_footer(file: Any) -> bool:
    """Return whether a Parquet file has a checksum of its footer; raise ArrowInvalid if that does not match.

    Reads only the footer, and leaves the file at its beginning.
    """
    footer = _footer(file)
    file.seek(0)
    has_checksum = footer[-_SEAL:-4] == _MARK
    if has_checksum and footer[-_SEAL:] != _seal(footer[:-_SEAL]):
        raise pa.ArrowInvalid("the checksum of its footer does not match")
    return has_checksum


def verify_parquet(file: Any) -> bool:
    """Read all of a Parquet file; return whether it has a checksum of its footer.

    Raises ArrowInvalid or OSError if a checksum does not match.
    """
    has_checksum = check_footer(file)
    parquet = pq.ParquetFile(file, page_checksum_verification=True)
    for group in range(parquet.num_row_groups):
        parquet.read_row_group(group)
    return has_checksum


def _footer(file: Any) -> bytes:
    size = file.seek(0, SEEK_END)
    file.seek(max(size - _PARQUET_END, 0))
    end = file.read()
    length = struct.unpack_from("<I", end)[0] if end[4:] == b"PAR1" else size
    if length > size - 2 * _PARQUET_END:
        raise pa.ArrowInvalid("it is not a Parquet file, or its end is missing")
    file.seek(size - _PARQUET_END - length)
    return bytes(file.read(length))
