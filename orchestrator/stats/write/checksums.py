"""Checksums in Arrow streams and Parquet files, in places that other readers ignore.

In a stream it is in the padding after a message's metadata, in a Parquet file in the space for a footer's signature.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from os import SEEK_END
from typing import IO, Any
from zlib import adler32, crc32

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.storage.stored_data import log_omission

END = struct.pack("<Ii", 0xFFFFFFFF, 0)
"""End of a stream."""
_MARK = b"HYcr"
_SEAL = len(_MARK) + 4
ROW_GROUP = 2**17
"""Rows of a row group."""
FILE = b"hookyard.file"
"""Metadata key of the file's path in the run's folder, which reveals a copy."""
_PARQUET_END = 8
"""Bytes after a footer: its length and `PAR1`."""


class CopiedFile(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A copy of a file under another name, whose rows would count twice."""

    advice = "Remove it: the other file has its rows"

    def __init__(self) -> None:
        super().__init__("it is a copy of another file of the run")


def sealed(message: pa.Buffer) -> bytes:
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


def is_whole(message: Any) -> bool:
    """Return whether a message has a checksum, and it holds."""
    metadata = memoryview(message.metadata)
    body = b"" if message.body is None else message.body
    return _seal(metadata[:-_SEAL], body) == bytes(metadata[-_SEAL:])


def schema_in(stream: Any, place: str) -> pa.Schema | None:
    """Return the schema at the beginning of a stream; None if a kill cut it short, or with a warning if damaged."""
    message = _message(stream)
    with suppress(pa.ArrowException, OSError):
        if message is not None and is_whole(message):
            schema = pa.ipc.read_schema(message)
            own = (schema.metadata or {}).get(FILE, b"").decode()
            if place.endswith(".arrow") and not (place.endswith(own) or own.endswith(place)):
                log_omission(place, f"all of its rows are left out: it is a copy of {own}")
                return None
            return schema.remove_metadata()
    stream.seek(0)
    data = _rest(stream)
    if message is not None or _next_whole(data) is not None or END in (data[: len(END)], data[-len(END) :]):
        log_omission(place, "all of its rows are left out: its beginning is damaged")
    return None


def whole_batches(stream: Any, schema: pa.Schema, place: str, *, is_over: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the batches from the stream's position, each once; raise EOFError at its end.

    Damaged batches and copies of earlier batches are left out with a warning. What a kill cut short at the end is no
    damage, unless the stream `is_over`: then nothing may be missing.
    """
    seen: set[tuple[bytes, int]] = set()
    while True:
        begin = stream.tell()
        message = _message(stream)
        if message is not None and is_whole(message):
            seal = message.metadata[-_SEAL:].to_pybytes(), adler32(message.body or b"")
            if seal in seen:
                log_omission(place, f"the rows in bytes {begin} to {stream.tell()} are left out: they are a copy")
                continue
            seen.add(seal)
            try:
                yield pa.ipc.read_record_batch(message, schema)
            except (pa.ArrowException, OSError) as error:
                log_omission(place, f"the rows after byte {begin} are left out: {error}")
                raise EOFError from error
            continue
        stream.seek(begin)
        rest = _rest(stream)
        follows = _next_whole(rest)
        end = begin + (len(rest) if follows is None else follows)
        if message is not None or follows is not None or (END in (rest[: len(END)], rest[-len(END) :]) and rest != END):
            log_omission(place, f"the rows in bytes {begin} to {end} are left out: their checksum does not hold")
        elif is_over and rest != END:
            log_omission(place, f"it was cut short at byte {end}; the rows after byte {begin} are missing")
        if follows is None:
            raise EOFError
        stream.seek(end)


def _rest(stream: Any) -> bytes:
    # pyarrow's `read()` fails on a file that has grown past the size that it had when it was opened.
    return b"".join(iter(partial(stream.read, 1 << 20), b""))


def _message(stream: Any) -> Any:
    try:
        return pa.ipc.read_message(stream)
    except (EOFError, OSError, pa.ArrowException):
        return None


def _next_whole(data: bytes) -> int | None:
    """Return where the next whole message after the first one begins."""
    begin = 0
    while (begin := data.find(END[:4], begin + 1)) >= 0:
        size = int.from_bytes(data[begin + 4 : begin + 8], "little")
        if (
            data[begin + size : begin + size + len(_MARK)] == _MARK
            and (message := _message(pa.BufferReader(data[begin:])))
            and is_whole(message)
        ):
            return begin
    return None


def write_parquet(tables: Iterable[pa.Table], file: IO[bytes], path: str) -> None:
    """Write tables of the same columns below each other, with the CRC-32 of each page and of the footer.

    `file` can be written and read, and `path` is its place in the run's folder. Only text has dictionaries, as
    measurements hardly repeat.
    """
    tables = iter(tables)
    first = next(tables)
    texts = [field.name for field in first.schema if pa.types.is_string(field.type)]
    schema = first.schema.with_metadata({**(first.schema.metadata or {}), FILE: path})
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=texts, write_page_checksum=True) as writer:
        for table in chain([first], tables):
            writer.write_table(table, ROW_GROUP)
    footer = _footer(file)
    file.seek(-_PARQUET_END, SEEK_END)
    file.write(_seal(footer) + struct.pack("<I", len(footer) + _SEAL) + b"PAR1")


def check_footer(file: Any, path: str) -> None:
    """Raise ArrowInvalid where the checksum of a Parquet file's footer does not hold, or the file belongs elsewhere.

    Reads only the footer, and leaves the file at its beginning.
    """
    footer = _footer(file)
    file.seek(0)
    if footer[-_SEAL:-4] == _MARK and footer[-_SEAL:] != _seal(footer[:-_SEAL]):
        raise pa.ArrowInvalid("the checksum of its footer does not hold")
    if FILE in footer and path.encode() not in footer:
        raise CopiedFile


def verify_parquet(file: Any, path: str) -> bool:
    """Return whether a Parquet file has a checksum in its footer.

    Reads all of it; raises ArrowInvalid or OSError where a checksum does not hold, or there is more than was written.
    """
    check_footer(file, path)
    parquet = pq.ParquetFile(file, page_checksum_verification=True)
    ends = [len(b"PAR1")]
    for group in range(parquet.num_row_groups):
        parquet.read_row_group(group)
        row_group = parquet.metadata.row_group(group)
        for column in map(row_group.column, range(row_group.num_columns)):
            begin = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
            ends.append(begin + column.total_compressed_size)
    footer, size = _footer(file), file.seek(0, SEEK_END)
    is_sealed_file = footer[-_SEAL:-4] == _MARK
    if is_sealed_file and max(ends) != size - _PARQUET_END - len(footer):
        raise pa.ArrowInvalid("it holds more than was written, such as a second copy of itself")
    return is_sealed_file


def verify_stream(data: bytes, is_over: bool) -> bool:
    """Return whether an Arrow stream begins whole. Warns of what is damaged in it."""
    stream = pa.BufferReader(data)
    schema = schema_in(stream, "")
    with suppress(EOFError):
        deque(whole_batches(stream, schema, "", is_over=is_over) if schema else (), maxlen=0)
    return schema is not None


def _footer(file: Any) -> bytes:
    size = file.seek(0, SEEK_END)
    file.seek(max(size - _PARQUET_END, 0))
    end = file.read()
    length = struct.unpack_from("<I", end)[0] if end[4:] == b"PAR1" else size
    if length > size - 2 * _PARQUET_END:
        raise pa.ArrowInvalid("it is not a Parquet file, or its end is missing")
    file.seek(size - _PARQUET_END - length)
    return bytes(file.read(length))
