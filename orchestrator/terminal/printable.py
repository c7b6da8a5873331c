"""What of a stored run may go to a terminal: text in which nothing moves the cursor, turns lines around or ends a
terminal's mode."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Line ends and tabs are not among it."""


def printable(text: str) -> str:
    """The text with control characters written out, as it may quote what strangers wrote."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_line(text: str) -> str:
    """As `printable`, in one line, so that it is taken for no other line."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_json(text: str) -> str:
    """A JSON text with them as JSON writes them, so that it says the same."""
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)


def printable_data(value: Any) -> Any:
    """Plain data, or a dataclass of such, with all its text in printable lines."""
    if isinstance(value, str):
        return printable_line(value)
    if isinstance(value, Mapping):
        return {printable_data(name): printable_data(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(printable_data, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{one.name: printable_data(getattr(value, one.name)) for one in fields(value) if one.init}
        )
    return value


class PrintableFormatter(logging.Formatter):
    """What is logged, as printable text."""

    def format(self, record: logging.LogRecord) -> str:
        """The message with control characters written out."""
        return printable(super().format(record))
