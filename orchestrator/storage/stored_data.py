"""Data as it comes back from a storage: JSON is checked against the type that it was written as. Imports nothing
heavy."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar, cast
from zlib import crc32

from orchestrator.errors import DamagedFile
from orchestrator.storage.storage import Storage

T = TypeVar("T")

_log = logging.getLogger("hookyard")
_SEAL = re.compile(rb',\s*"(.rc|c.c|cr.)": "(.{8})"\s*}\s*\Z')
"""Harm to one character of a seal leaves it one."""
_LINE_END = b', "crc": "????????"}'
_ANY = ord("?")
_SEAL_BYTES = 40
"""A seal has fewer."""


def sealed(text: str) -> str:
    """The JSON text of a mapping with one entry more, `crc`: the CRC-32 of what stands before that."""
    body = text.removesuffix("}").rstrip()
    gap = "\n" if "\n" in body else ""
    return f'{body},{gap} "crc": "{crc32(body.encode()):08x}"{gap}}}'


def is_whole(data: bytes) -> bool | None:
    """Whether a sealed text is as it was written; None where it has no seal."""
    seal = _SEAL.search(data, max(0, len(data) - _SEAL_BYTES))
    return None if seal is None else (seal[1], seal[2]) == (b"crc", b"%08x" % crc32(data[: seal.start()]))


@cache
def _warn_changed(place: str) -> None:
    _log.warning(
        "%s was changed after it was written: its checksum does not hold. It is read as it is; where nobody meant that,"
        " put back a copy of it",
        place,
    )


def write_json(storage: Storage, name: str, entries: Mapping[str, Any]) -> None:
    """Writes a sealed JSON file for people to read too; what JSON does not know becomes text."""
    storage.write(name, sealed(json.dumps(entries, indent=1, default=str)))


def read_json(storage: Storage, name: str, read: Callable[[Any], T], advice: str) -> T:
    """What a JSON file holds, as `read` takes it; that raises ValueError for what it cannot take. Raises
    FileNotFoundError where there is none, DamagedFile where it is damaged; `advice` says what can be done then. One
    that was changed, as people may, is read, which is said once."""
    data = storage.read(name)
    try:
        found = read(parsed(data))
    except ValueError as error:
        raise DamagedFile(str(storage / name), str(error), advice) from error
    if is_whole(data) is False:
        _warn_changed(str(storage / name))
    return found


def parsed(data: bytes) -> Any:
    """The value of a JSON text, without its seal; raises ValueError for anything else."""
    if not data.strip():
        raise ValueError("it is empty")
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(value, dict):
        value.pop("crc", None)
    return value


def mapping(value: Any) -> dict[str, Any]:
    """A mapping of JSON as it is; raises ValueError for anything else."""
    return dict(checked(value, Mapping[str, Any]))


_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


def log_omission(place: object, what: str) -> None:
    """Says what of a damaged file is left out."""
    heard = _heard.get()
    if heard is None:
        _log.warning("%s is damaged: %s", place, what)
    else:
        heard.append(what)


@contextmanager
def hearing() -> Iterator[list[str]]:
    """Within it what is left out of damaged files is gathered here, and not logged."""
    heard: list[str] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


def append_line(storage: Storage, name: str, entries: Mapping[str, Any]) -> None:
    """Adds a sealed line to a JSON Lines file."""
    storage.append(name, sealed(json.dumps(entries)) + "\n")


def read_lines(storage: Storage, name: str, kind: type[T]) -> list[T]:
    """What the lines of such a file hold, each a `kind` of dataclass; none where there is no file. See
    `whole_lines`."""
    try:
        lines = storage.read_appended(name)
    except FileNotFoundError:
        return []
    return whole_lines(lines, str(storage / name), lambda line: cast(T, checked(line, kind)))


def whole_lines(
    data: bytes, place: str, read: Callable[[Any], T], first: int = 1, seen: dict[bytes, int] | None = None
) -> list[T]:
    """Return the content of each line of a JSON Lines file, once.

    `read` converts a line, and raises ValueError for one that it does not accept. `place` names the file. `first` is
    the number of the first line in `data`, and `seen` the lines before it with their numbers. A damaged line and a
    copy of an earlier line are left out with a warning. A line that a kill cut short is left out without one.
    """
    found, seen = [], {} if seen is None else seen
    copies: list[int] = []
    for number, line in enumerate(data.split(b"\n"), start=first):
        if not line.strip():
            continue
        if seen.setdefault(line, number) != number:
            copies.append(number)
            continue
        try:
            if is_whole(line) is False:
                raise ValueError("its checksum does not hold")
            found.append(read(parsed(line)))
        except ValueError as error:
            if not is_cut_short(line):
                log_omission(place, f"line {number} is left out: {error}")
    if copies:
        several = f"{len(copies)} lines from line {copies[0]} on are left out: each"
        what = f"line {copies[0]} is left out: it" if len(copies) == 1 else several
        log_omission(place, f"{what} is a copy of an earlier line")
    return found


def is_cut_short(line: bytes) -> bool:
    """Whether a line is one of ours up to some byte: what JSON it holds is right as far as it goes, and the seal is not
    yet there."""
    from pydantic_core import from_json

    if (
        sum(
            byte != sign
            for byte, sign in zip(line[-len(_LINE_END) :].rjust(len(_LINE_END)), _LINE_END, strict=True)
            if sign != _ANY
        )
        <= 2
    ):
        return False
    try:
        from_json(line)
        return False
    except ValueError:
        pass
    try:
        return isinstance(from_json(line, allow_partial="trailing-strings"), dict)
    except ValueError:
        return False


def checked(value: Any, kind: Any, path: str = "") -> Any:
    """Return a value of JSON as its type: a dataclass, an enumeration, a mapping; raise ValueError with its place.

    Entries that a dataclass does not know are dropped.
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise ValueError(_describe(error.errors(include_url=False)[0], path)) from None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "dict": "a mapping",
    "mapping": "a mapping",
    "dataclass": "a mapping",
    "dataclass_exact": "a mapping",
    "list": "a list",
    "tuple": "a list",
}
"""Beginnings of pydantic's error types, and what was expected."""


def _describe(error: Any, path: str) -> str:
    for part in error["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    if error["type"] == "missing":
        return f"it has no `{path}`"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    expected = error.get("ctx", {}).get("expected")
    wanted = f"one of {expected}" if expected else _EXPECTED.get(error["type"].removesuffix("_type"), error["msg"])
    shown = repr(error["input"])
    shown = shown if len(shown) < 60 else f"{shown[:57]}..."
    return f"`{path}` is {shown}, not {wanted}" if path else f"it is not {wanted}"
