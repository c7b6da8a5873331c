"""Checksums in Arrow streams and Parquet files, where other readers ignore them.

A stream has them in the padding after each message's metadata, a Parquet file in the space for the
footer's signature. The first message of a stream also has the length that the stream had at the
last sync.
"""

import struct
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from os import SEEK_END
from typing import IO, Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.storage.format_number import FORMAT, METADATA_KEY, check_metadata
from orchestrator.storage.stored_data import log_omission

END_OF_STREAM = struct.pack("<Ii", 0xFFFFFFFF, 0)
"""Last bytes of a complete stream."""
_CHECKSUM_MARKER = b"HYcr"
_CHECKSUM_SIZE = len(_CHECKSUM_MARKER) + 4
LENGTH_SIZE = 8 + _CHECKSUM_SIZE
"""Bytes of a stream's length and its checksum, at the end of the first message."""
_PAGE_SIZE = 4096
_ROW_GROUP_SIZE = 2**17
"""Number of rows in a row group."""
_PARQUET_TRAILER_SIZE = 8
"""Bytes after a footer: its length and `PAR1`."""


def make_stream_start(schema: pa.Schema, length: int = 0) -> bytes:
    """Return the first message of a stream. Its last bytes are the length, as from
    `pack_length`."""
    schema = _add_format(schema)
    start = add_checksum(schema.serialize(), pack_length(length))
    if (
        len(start) % _PAGE_SIZE == 8
    ):  # a later write of the length would cross two pages, and a kill could tear it
        padded = schema.with_metadata({**schema.metadata, "padding": ""})
        start = add_checksum(padded.serialize(), pack_length(length))
    return start


def _add_format(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the number of the format in its metadata."""
    return schema.with_metadata({**(schema.metadata or {}), METADATA_KEY: str(FORMAT)})


def pack_length(length: int) -> bytes:
    data = struct.pack("<q", length)
    return data + _make_checksum(data)


def make_stream(schema: pa.Schema, batches: bytes) -> bytes:
    """Return a complete stream. `batches` are serialized, with checksums."""
    rest = batches + END_OF_STREAM
    return make_stream_start(schema, len(make_stream_start(schema)) + len(rest)) + rest


def add_checksum(message: pa.Buffer, padding: bytes = b"") -> bytes:
    """Add the CRC-32 of a serialized message's metadata and body to it, and more padding."""
    data = memoryview(message)
    marker, size = struct.unpack_from("<Ii", data)
    metadata, body = data[8 : 8 + size], data[8 + size :]
    padding = _make_checksum(metadata, body) + padding
    return b"".join((struct.pack("<Ii", marker, size + len(padding)), metadata, padding, body))


def _make_checksum(*data: bytes | memoryview | pa.Buffer) -> bytes:
    checksum = 0
    for part in data:
        checksum = crc32(part, checksum)
    return _CHECKSUM_MARKER + struct.pack("<I", checksum)


def read_stream_start(stream: Any, path: str) -> tuple[pa.Schema | None, int]:
    """Return the schema of a stream, and its length at the last sync. Warns if they are damaged:
    None, 0.

    Raises NewerFormat.
    """
    message = _read_message(stream)
    with suppress(pa.ArrowException, OSError):
        if message is not None:
            metadata = memoryview(message.metadata)
            checked, length = metadata[:-LENGTH_SIZE], metadata[-LENGTH_SIZE:]
            if _is_intact(checked):
                stored = pa.ipc.read_schema(message)
                check_metadata(stored.metadata, path)
                schema = stored.remove_metadata()
                if _is_intact(length):
                    return schema, struct.unpack_from("<q", length)[0]
                log_omission(
                    path, "its last rows may be missing: the length that it stores is damaged"
                )
                return schema, 0
    log_omission(path, "all of its rows are left out: its beginning is damaged")
    return None, 0


class Stream(NamedTuple):
    """The intact part of an Arrow stream."""

    schema: pa.Schema | None
    """None if the beginning is damaged."""
    batches: list[pa.RecordBatch]
    end: int
    """Offset in the file after the last batch."""


def read_stream(data: bytes, path: str, schema: pa.Schema | None = None, start: int = 0) -> Stream:
    """Read the complete batches of a stream. `data` begins at the file's byte `start`; after 0,
    pass the schema.

    Warns of damage. A message that a kill cut short after the last sync is not damage.
    """
    stream, batches, length = pa.BufferReader(data), list[pa.RecordBatch](), 0
    if schema is None:
        schema, length = read_stream_start(stream, path)
    if schema is None:
        return Stream(None, [], start)
    while True:
        end = stream.tell()
        message = _read_message(stream)
        batch = None if message is None else _read_batch(message, schema)
        if batch is None:
            break
        batches.append(batch)
    rest, end = data[end:], start + end
    if len(data) < length:
        log_omission(
            path, f"it was cut short at byte {len(data)}; the rows after byte {end} are missing"
        )
    elif rest != END_OF_STREAM and (
        message is not None or end < length or rest.endswith(END_OF_STREAM)
    ):
        log_omission(path, f"the rows after byte {end} are left out: their checksum does not match")
    return Stream(schema, batches, end)


def _read_batch(message: Any, schema: pa.Schema) -> pa.RecordBatch | None:
    with suppress(pa.ArrowException, OSError):
        if _is_intact(memoryview(message.metadata), message.body or b""):
            return pa.ipc.read_record_batch(message, schema)
    return None


def _is_intact(data: memoryview, body: pa.Buffer | bytes = b"") -> bool:
    """Return whether `data` ends with the checksum of the rest and the body."""
    return _make_checksum(data[:-_CHECKSUM_SIZE], body) == bytes(data[-_CHECKSUM_SIZE:])


def _read_message(stream: Any) -> Any:
    try:
        return pa.ipc.read_message(stream)
    except (EOFError, OSError, pa.ArrowException):
        return None


def write_parquet(tables: Iterable[pa.Table], file: IO[bytes]) -> None:
    """Write tables with the same columns one after the other, with the CRC-32 of each page and of
    the footer.

    `file` must be readable too. Only text columns have dictionaries: measurements hardly repeat.
    """
    tables = iter(tables)
    first = next(tables)
    texts = [field.name for field in first.schema if pa.types.is_string(field.type)]
    with pq.ParquetWriter(
        file,
        _add_format(first.schema),
        compression="zstd",
        use_dictionary=texts,
        write_page_checksum=True,
    ) as writer:
        for table in chain([first], tables):
            writer.write_table(table, _ROW_GROUP_SIZE)
    footer = _read_footer(file)
    file.seek(-_PARQUET_TRAILER_SIZE, SEEK_END)
    file.write(_make_checksum(footer) + struct.pack("<I", len(footer) + _CHECKSUM_SIZE) + b"PAR1")


def check_footer(file: Any, path: str) -> bool:
    """Return whether a Parquet file has a checksum of its footer. Raises ArrowInvalid if it does
    not match.

    Also raises NewerFormat, with the file's `path`. Reads only the footer, and returns the file to
    its beginning.
    """
    footer = _read_footer(file)
    file.seek(0)
    has_checksum = footer[-_CHECKSUM_SIZE:-4] == _CHECKSUM_MARKER
    if has_checksum and footer[-_CHECKSUM_SIZE:] != _make_checksum(footer[:-_CHECKSUM_SIZE]):
        raise pa.ArrowInvalid("the checksum of its footer does not match")
    check_metadata(pq.read_metadata(file).metadata, path)
    file.seek(0)
    return has_checksum


def verify_parquet(file: Any, path: str) -> bool:
    """Read a whole Parquet file, and return whether it has a checksum of its footer.

    Raises ArrowInvalid or OSError if a checksum does not match.
    """
    has_checksum = check_footer(file, path)
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
