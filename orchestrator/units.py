"""Formats of numbers with their units. A column's name gives its unit."""

import math
from numbers import Real
from typing import Any

from hooks.counts import format_count as format_count

_SUFFIXES = {
    "_per_s": "/s",
    "_s": "s",
    "_bytes": "bytes",
    "_percent": "%",
    "_power_w": "W",
    "_temperature_c": "°C",
    "_clock_mhz": "MHz",
}
"""Unit of each suffix of a name; the first match applies."""
_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20}
"""Bytes of each unit below GiB, the smallest first."""
_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def number_epoch(epoch: int) -> int:
    """Return an epoch's number in text, which counts from 1, as the names of checkpoints do; data
    counts from 0."""
    return epoch + 1


def is_number(value: Any) -> bool:
    """Return whether a value is a number other than NaN and booleans."""
    return not isinstance(value, bool) and isinstance(value, Real) and bool(value == value)


def format_seconds(value: float) -> str:
    """Format a measured time: `12.3 ms`, `1.5 s`, `3 min 05 s`, `2 h 05 min`."""
    if abs(value) < 0.9995:
        return f"{value * 1000:.3g} ms"
    if abs(value) < 59.95 or not math.isfinite(value):
        return f"{value:.3g} s"

    sign = "-" if value < 0 else ""
    seconds = round(abs(value))
    if seconds < 3600:
        return f"{sign}{seconds // 60} min {seconds % 60:02d} s"
    return sign + _format_hours(seconds)


def format_rough_duration(value: float) -> str:
    """Format a duration of which only the size matters, such as an age or a remaining time: `12 s`,
    `3 min`, `2 h 05 min`."""
    if value < 90:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 90 else _format_hours(value)


def _format_hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_bytes(value: float) -> str:
    """Format bytes: `100 B`, `512 KiB`, `12.3 MiB`, `1.5 GiB`."""
    for unit, size in _SIZES.items():
        if abs(value) < 999.5 * size:
            return f"{value / size:.3g} {unit}"
    return f"{_round(value / 2**30)} GiB"


def _round(value: float) -> str:
    """Round a number to three digits, or to an integer."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def get_unit(name: str) -> str:
    """Return the unit of a column, such as `s`, `bytes`, `/s` or `%`; empty if its name has
    none."""
    # In `stats/step_s/p95` the unit precedes the statistic.
    for part in (name, name.rpartition("/")[0]):
        for suffix, symbol in _SUFFIXES.items():
            if part.endswith(suffix):
                return symbol
    return ""


def format_value(name: str, value: Any) -> str:
    """Format a value by the unit in its name: `12.3 ms`, `1.5 GiB`, `42 %`; empty for None and
    NaN."""
    if isinstance(value, list):
        return ", ".join(format_value(name, item) for item in value)
    if value is None or value != value:
        return ""
    if not is_number(value):
        return str(value)
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    unit = get_unit(name)
    if unit == "s":
        return format_seconds(value)
    if unit == "bytes":
        return format_bytes(value)
    if name.endswith("share"):
        return f"{value:.1%}"
    text = format_number(value)
    if not unit:
        return text
    return f"{text}/s" if unit == "/s" else f"{text} {unit}"


def format_parameter(value: Any) -> str:
    """Format a value of a parameter in the words of an experiment file: `1000`, `0.0125`, `true`,
    `null`.

    A fraction is rounded to four digits. Unlike `format_number`, the text has no prefix such as
    `k` and no commas, so it can be pasted into a file.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not is_number(value) or math.isinf(value):
        return str(value)
    return str(int(value)) if _is_short_integer(value) else f"{value:.4g}"


def _is_short_integer(value: float) -> bool:
    return isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e7)


def format_in_full(value: float) -> str:
    """Format a number with all digits that it needs: `0.1`, `8` for 8.0, `1234567890123`."""
    if isinstance(value, int):
        return str(value)
    short = f"{value:.12g}"
    return short if float(short) == value else repr(float(value))


def format_number(value: float) -> str:
    """Format a number briefly: `1.5k`, `0.25`."""
    if float(value).is_integer():
        return f"{int(value):,}" if abs(value) < 1e7 else _format_with_prefix(value)
    return f"{value:.4g}" if abs(value) < 9999.5 else _format_with_prefix(value)


def _format_with_prefix(value: float) -> str:
    value = float(f"{value:.4g}")
    if abs(value) >= 1e16:
        return f"{value:.3g}"
    for letter, size in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
