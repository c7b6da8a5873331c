"""JSON Lines files in a storage: a JSON value on each line, which ends with a checksum of the line."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from zlib import crc32

from orchestrator.storage.omissions import log_omission
from orchestrator.storage.storage import Storage
from orchestrator.storage.strict_json import format_json, parse_json
from orchestrator.storage.validation import validate

T = TypeVar("T")

_CHECKSUM = re.compile(rb', "(.rc|c.c|cr.)": "(.{8})"}\Z')
"""Checksum at the end of a line, even if one character of its key has changed."""
_CHANGED_END = re.compile(rb'"crc": ".{8}".\Z')
"""Checksum of a line whose closing brace has become another character."""


def append_line(storage: Storage, name: str, entries: Mapping[str, Any]) -> None:
    """Append a line to a JSON Lines file, which must have one writer."""
    storage.append(name, format_line(entries))


def format_line(entries: Mapping[str, Any]) -> str:
    """Return a line of a JSON Lines file: its last entry, `crc`, is the CRC-32 of the text before
    it."""
    content = format_json(entries).removesuffix("}")
    return f'{content}, "crc": "{crc32(content.encode()):08x}"}}\n'


def read_lines(storage: Storage, name: str, kind: type[T]) -> list[T]:
    """Return the lines of a JSON Lines file as dataclasses, [] if the file is missing; see
    `parse_lines`."""
    try:
        lines = storage.read(name)
    except FileNotFoundError:
        return []
    return parse_lines(lines, str(storage / name), lambda line: validate(line, kind))


def parse_lines(data: bytes, place: str, read: Callable[[Any], T], first: int = 1) -> list[T]:
    """Return the content of each line of a JSON Lines file.

    A damaged line is skipped with a warning, a line cut short by a kill without one.

    Args:
        data: Lines of the file.
        place: The file, for the warning.
        read: Converts a line, and raises ValueError if it is invalid.
        first: Number of the first line in `data`, for the warning.
    """
    values = []
    for number, line in enumerate(data.split(b"\n"), start=first):
        has_end = line.endswith(b"}") or _CHANGED_END.search(line)
        is_cut_short = line.startswith(b"{") and not has_end
        if is_cut_short or not line.strip():
            continue

        try:
            values.append(read(_parse_line(line)))
        except ValueError as error:
            log_omission(place, f"line {number} is left out: {error}")
    return values


def _parse_line(line: bytes) -> Any:
    """Return the content of a line without its checksum, which it may lack; raises ValueError."""
    content = parse_json(line)
    checksum = _CHECKSUM.search(line)
    if checksum is None:
        return content
    if checksum.groups() != (b"crc", b"%08x" % crc32(line[: checksum.start()])):
        raise ValueError("its checksum does not match")
    del content["crc"]
    return content
