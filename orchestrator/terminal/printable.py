"""Escapes of control characters, which make the text of stored runs safe for a terminal."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

_CONTROL = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except line ends and tabs."""


def escape_controls(text: str) -> str:
    """Escape control characters."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escape_line(text: str) -> str:
    """Escape control characters, line ends and tabs."""
    return escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def escape_json(text: str) -> str:
    """Escape control characters as JSON does, which keeps the value."""
    return _CONTROL.sub(lambda match: json.dumps(match[0])[1:-1], text)


def escape_surrogates(text: str) -> str:
    """Escape what UTF-8 cannot encode, such as bytes of a file name that is not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def escape_data(value: Any, escape: Callable[[str], str] = escape_line) -> Any:
    """Escape every text in plain data or dataclasses."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {
            escape_data(name, escape): escape_data(item, escape) for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [escape_data(item, escape) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        own = [part.name for part in fields(value) if part.init]
        return replace(value, **{name: escape_data(getattr(value, name), escape) for name in own})
    return value


class PrintableFormatter(logging.Formatter):
    """Formatter that escapes control characters in log messages."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))
