"""JSON files in a storage: written with a format, validated when read. Needs neither torch nor
pandas.

The text is strict JSON, which has no numbers for NaN and infinity. They become the words of
`_FLOATS`, and a string that equals such a word gets a backslash in front, so that `parse_json`
returns the original value. Each line of a JSON Lines file ends with a checksum of the line.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar
from zlib import crc32

from orchestrator.errors import DamagedFile
from orchestrator.storage.format_number import FORMAT, FORMAT_KEY, check_format
from orchestrator.storage.storage import Storage

T = TypeVar("T")

_log = logging.getLogger("hookyard")
_CHECKSUM = re.compile(rb', "(.rc|c.c|cr.)": "(.{8})"}\Z')
"""Checksum at the end of a line, even if one character of its key has changed."""
_CHANGED_END = re.compile(rb'"crc": ".{8}".\Z')
"""Checksum of a line whose closing brace has become another character."""
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WORD = re.compile(r"\\*-?(?:NaN|Infinity)")
"""A word of `_FLOATS`, perhaps with backslashes in front."""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it is not valid JSON: JSON has no number {name}")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Decoder of all files and lines; `json.loads` would make one for each."""


def format_json(value: Any, indent: int | None = None) -> str:
    """Return a value as strict JSON. Numbers of numpy and torch become JSON numbers, and other
    objects text."""
    text = json.dumps(value, indent=indent, default=_to_plain)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(_with_words(value), indent=indent, default=_to_plain, allow_nan=False)
    return text


def _to_plain(value: Any) -> Any:
    """Return the number in a scalar of numpy or torch, and the text of anything else."""
    with suppress(AttributeError, TypeError, ValueError, RuntimeError):
        number = value.item()
        if isinstance(number, int | float):
            return number
    return str(value)


def _with_words(value: Any) -> Any:
    """Return a value with words for NaN and infinity."""
    if isinstance(value, Mapping):
        return {key: _with_words(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_with_words(entry) for entry in value]
    if isinstance(value, str) and _WORD.fullmatch(value):
        return f"\\{value}"
    if not isinstance(value, str | int | float | None):
        value = _to_plain(value)
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _with_floats(value: Any) -> Any:
    """Return what `_with_words` got."""
    if isinstance(value, dict):
        return {key: _with_floats(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_floats(entry) for entry in value]
    if isinstance(value, str) and _WORD.fullmatch(value):
        return _FLOATS[value] if value in _FLOATS else value[1:]
    return value


def format_file(entries: Mapping[str, Any], indent: int | None = 1) -> str:
    """Return the text of a JSON file, with its format."""
    return format_json({**entries, FORMAT_KEY: FORMAT}, indent)


@cache
def warn_once(message: str) -> None:
    """Log a message once, although several readers may find the same damaged file."""
    _log.warning("%s", message)


def write_json(storage: Storage, name: str, entries: Mapping[str, Any]) -> None:
    """Write an indented JSON file, in the format of `format_json`."""
    storage.write(name, format_file(entries))


def read_json(storage: Storage, name: str, read: Callable[[Any], T], advice: str) -> T:
    """Return the content of a JSON file, converted by `read`, which raises ValueError for invalid
    content.

    Raises FileNotFoundError, DamagedFile with `advice` for invalid content, or NewerFormat.
    """
    try:
        return read(parse_file(storage.read(name), storage / name))
    except ValueError as error:
        raise DamagedFile(str(storage / name), str(error), advice) from error


def parse_file(data: bytes, place: object) -> Any:
    """Return the content of a JSON file, without its format; raises ValueError or NewerFormat."""
    content = parse_json(data)
    if isinstance(content, dict):
        check_format(content.pop(FORMAT_KEY, FORMAT), place)
    return content


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON text; raises ValueError."""
    if not data.strip():
        raise ValueError("it is empty")

    try:
        value = _DECODER.decode(data.decode())
        if b"NaN" in data or b"Infinity" in data:
            return _with_floats(value)
        return value
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_omissions: ContextVar[list[str] | None] = ContextVar("omissions", default=None)


def log_omission(place: object, what: str) -> None:
    """Log which content of a damaged file is skipped."""
    omissions = _omissions.get()
    if omissions is None:
        warn_once(f"{place} is damaged: {what}")
    else:
        omissions.append(what)


@contextmanager
def collecting_omissions() -> Iterator[list[str]]:
    """Collect the messages about skipped content, instead of logging them."""
    omissions: list[str] = []
    token = _omissions.set(omissions)
    try:
        yield omissions
    finally:
        _omissions.reset(token)


def append_line(storage: Storage, name: str, entries: Mapping[str, Any]) -> None:
    storage.append(name, format_line(entries))


def format_line(entries: Mapping[str, Any]) -> str:
    """Return a line of a JSON Lines file: its last entry, `crc`, is the CRC-32 of the text before it."""
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

    `read` converts a line, and raises ValueError for an invalid one. `place` names the file, and
    `first` is the number of the first line in `data`. A damaged line is skipped with a warning, a
    line cut short by a kill without one.
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


def check_mapping(value: Any) -> dict[str, Any]:
    """Validate and return a JSON mapping; raises ValueError for any other value."""
    return validate(value, dict[str, Any])


def validate(value: Any, kind: type[T], path: str = "") -> T:
    """Convert a JSON value to a type, such as a dataclass, an enum or a dict; raises ValueError
    with the path.

    Entries that the dataclass does not have are dropped.
    """
    from pydantic import ValidationError

    try:
        adapter = _adapter(kind)  # type: ignore[arg-type]  # mypy takes classes for unhashable
        validated: T = adapter.validate_json(json.dumps(value), strict=True)
        return validated
    except ValidationError as error:
        raise ValueError(_describe(error.errors(include_url=False)[0], path)) from None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _describe(error: Any, path: str) -> str:
    path = _join([path, *error["loc"]])
    if error["type"] == "missing":
        return f"it has no `{path}`"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    value = repr(error["input"])
    value = value if len(value) < 60 else f"{value[:57]}..."
    message = f"{error['msg'][0].lower()}{error['msg'][1:]}, got {value}"
    return f"`{path}`: {message}" if path else message


def _join(keys: Sequence[str | int]) -> str:
    """Return the path of nested keys: `hosts[0].device`."""
    path = ""
    for key in keys:
        if isinstance(key, int):
            path += f"[{key}]"
        elif key:
            path += f".{key}" if path else key
    return path
