"""The format of the files of rows: Arrow streams that grow, and Parquet files, which do not."""

import struct
from contextlib import suppress
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.storage.format_version import FORMAT, METADATA_KEY, check_metadata
from orchestrator.storage.omissions import log_omission

END_OF_STREAM = struct.pack("<Ii", 0xFFFFFFFF, 0)
"""Last bytes of a complete stream."""
_ROW_GROUP_SIZE = 2**17
"""Number of rows in a row group."""


class Stream(NamedTuple):
    """The readable part of an Arrow stream."""

    schema: pa.Schema | None
    """None if the beginning cannot be read."""
    batches: list[pa.RecordBatch]
    end: int
    """Offset in the file after the last batch."""
    is_cut_short: bool = False
    """True if the last message is incomplete, because of a kill or damage."""


def make_stream_start(schema: pa.Schema) -> bytes:
    """Return the first message of a stream; the messages of its batches follow."""
    return bytes(_add_format(schema).serialize())


def make_stream(schema: pa.Schema, batches: bytes) -> bytes:
    """Return a complete stream of serialized batches."""
    return make_stream_start(schema) + batches + END_OF_STREAM


def _add_format(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the number of the format in its metadata."""
    return schema.with_metadata({**(schema.metadata or {}), METADATA_KEY: str(FORMAT)})


def read_schema(stream: Any, path: str) -> pa.Schema | None:
    """Return the schema at the beginning of a stream; None with a warning if it cannot be read.

    Raises NewerFormat.
    """
    with suppress(EOFError, OSError, UnicodeDecodeError, pa.ArrowException):
        stored = pa.ipc.read_schema(pa.ipc.read_message(stream))
        check_metadata(stored.metadata, path)
        return pa.schema([(field.name, field.type) for field in stored])
    log_omission(path, "all of its rows are left out: its beginning cannot be read")
    return None


def read_stream(data: bytes, path: str, schema: pa.Schema | None = None, start: int = 0) -> Stream:
    """Read the complete batches of a stream. `data` begins at the file's byte `start`; after 0,
    pass the schema.

    Warns of bytes that cannot be read, but not of a last message that was cut short, as a kill does.
    """
    stream = pa.BufferReader(data)
    schema = schema or read_schema(stream, path)
    if schema is None:
        return Stream(None, [], start)

    batches: list[pa.RecordBatch] = []
    is_readable = True
    while True:
        end = stream.tell()
        message = _read_message(stream)
        if message is None:
            break
        batch = _read_batch(message, schema)
        if batch is None:
            is_readable = False
            break
        batches.append(batch)

    rest = data[end:]
    is_cut_short = rest not in (b"", END_OF_STREAM)
    if not is_readable or (is_cut_short and rest.endswith(END_OF_STREAM)):
        what = f"the rows after byte {start + end} are left out: they cannot be read"
        log_omission(path, what)
        is_cut_short = False
    return Stream(schema, batches, start + end, is_cut_short)


def _read_message(stream: Any) -> Any:
    try:
        return pa.ipc.read_message(stream)
    except (EOFError, OSError, pa.ArrowException):
        return None


def _read_batch(message: Any, schema: pa.Schema) -> pa.RecordBatch | None:
    with suppress(pa.ArrowException, OSError):
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)  # a reader of invalid offsets would crash
        return batch
    return None


def write_parquet(table: pa.Table, file: IO[bytes]) -> None:
    """Write a table as Parquet, with the CRC-32 of each page.

    Only text columns have dictionaries: measurements hardly repeat.
    """
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    pq.write_table(
        table.replace_schema_metadata(_add_format(table.schema).metadata),
        file,
        row_group_size=_ROW_GROUP_SIZE,
        compression="zstd",
        use_dictionary=texts,
        write_page_checksum=True,
    )
