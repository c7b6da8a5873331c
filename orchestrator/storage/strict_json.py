"""Strict JSON: text that any parser reads, also of NaN and infinity.

JSON has no numbers for NaN and infinity. They become the words of `_FLOATS`, and a string that
equals such a word gets a backslash in front, so that `parse_json` returns the original value.

Nor has JSON text that is not Unicode, such as the name of a file that is not UTF-8. Its bytes are
written as text: `\\udcff`.
"""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WORD = re.compile(r"\\*-?(?:NaN|Infinity)")
"""A word of `_FLOATS`, perhaps with backslashes in front."""


def format_json(value: Any, indent: int | None = None) -> str:
    """Return a value as strict JSON.

    Args:
        value: Containers, numbers and text. Numbers of numpy and torch become JSON numbers, and
            other objects become text.
        indent: Spaces of each level; None writes a single line.
    """
    text = json.dumps(value, indent=indent, default=_to_plain)
    if "NaN" in text or "Infinity" in text or "\\ud" in text:
        text = json.dumps(_to_strict(value), indent=indent, default=_to_plain, allow_nan=False)
    return text


def parse_json(data: bytes) -> Any:
    """Return the value of a text of `format_json`, or of any other JSON; raises ValueError."""
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


def _to_plain(value: Any) -> Any:
    """Return the number in a scalar of numpy or torch, and the text of anything else."""
    with suppress(AttributeError, TypeError, ValueError, RuntimeError):
        number = value.item()
        if isinstance(number, int | float):
            return number
    return str(value)


def _to_strict(value: Any) -> Any:
    """Return a value with words for NaN and infinity, and with Unicode for any other text."""
    if isinstance(value, Mapping):
        return {_to_unicode(key): _to_strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_to_strict(entry) for entry in value]
    if isinstance(value, str) and _WORD.fullmatch(value):
        return f"\\{value}"
    if not isinstance(value, str | int | float | None):
        value = _to_plain(value)
    value = _to_unicode(value)
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _to_unicode(value: Any) -> Any:
    """Return a text with escapes for what UTF-8 cannot encode, and anything else as it is."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _with_floats(value: Any) -> Any:
    """Return a value with the numbers for which `_to_strict` wrote words."""
    if isinstance(value, dict):
        return {key: _with_floats(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_floats(entry) for entry in value]
    if isinstance(value, str) and _WORD.fullmatch(value):
        return _FLOATS[value] if value in _FLOATS else value[1:]
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it is not valid JSON: JSON has no number {name}")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Decoder of all files and lines; `json.loads` would make one for each."""
