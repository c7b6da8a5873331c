"""Escapes of control characters, which make the text of stored runs safe for a terminal."""

import json
import logging
import re
from collections.abc import Mapping
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


def escape_data(value: Any) -> Any:
    """Escape every text in plain data or dataclasses, as `escape_line` does."""
    if isinstance(value, str):
        return escape_line(value)
    if isinstance(value, Mapping):
        return {escape_data(name): escape_data(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(escape_data, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{
                part.name: escape_data(getattr(value, part.name))
                for part in fields(value)
                if part.init
            },
        )
    return value


class PrintableFormatter(logging.Formatter):
    """Formatter that escapes control characters in log messages."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))
