"""Text of stored runs made safe for a terminal: control characters are escaped."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""All but line ends and tabs."""


def printable(text: str) -> str:
    """Escape control characters."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_line(text: str) -> str:
    """Escape control characters, line ends and tabs."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_json(text: str) -> str:
    """Escape control characters as JSON does, which keeps the value."""
    return _CONTROL.sub(lambda match: json.dumps(match[0])[1:-1], text)


def printable_data(value: Any) -> Any:
    """Make every text in plain data or dataclasses a printable line."""
    if isinstance(value, str):
        return printable_line(value)
    if isinstance(value, Mapping):
        return {printable_data(name): printable_data(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(printable_data, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{part.name: printable_data(getattr(value, part.name)) for part in fields(value) if part.init}
        )
    return value


class PrintableFormatter(logging.Formatter):
    """Escapes control characters in log messages."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
