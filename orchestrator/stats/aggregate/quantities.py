"""Quantities as people read them. The name of a column tells its unit."""

import math
from numbers import Real
from typing import Any

_SUFFIXES = {
    "_per_s": "/s",
    "_s": "s",
    "_bytes": "bytes",
    "_percent": "%",
    "_power_w": "W",
    "_temperature_c": "°C",
    "_clock_mhz": "MHz",
}
"""Ends of names and the unit they stand for; the first that fits."""
_COUNTS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def is_number(value: Any) -> bool:
    """Whether a value is a number, and one at all."""
    return not isinstance(value, bool) and isinstance(value, Real) and bool(value == value)


def seconds(value: float) -> str:
    """`12.3 ms`, `1.5 s`."""
    return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"


def size(value: float) -> str:
    """`12.3 MiB`, `1.5 GiB`."""
    return f"{value / 2**20:.3g} MiB" if abs(value) < 1000 * 2**20 else f"{value / 2**30:.3g} GiB"


def duration(value: float) -> str:
    """What people wait for or look back on: `12 s`, `3 min`, `2 h 05 min`."""
    if value < 90:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def unit(name: str) -> str:
    """The unit of a column: `s`, `bytes`, `/s`, `%` ...; empty where the name has none."""
    # In stats/step_s/p95 the unit stands before the statistic.
    for part in (name, name.rpartition("/")[0]):
        for suffix, found in _SUFFIXES.items():
            if part.endswith(suffix):
                return found
    return ""


def text(name: str, value: Any) -> str:
    """A value as people read it: `12.3 ms`, `1.5 GiB`, `42 %`; empty where there is none."""
    if value is None or value != value:
        return ""
    if not is_number(value):
        return str(value)
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    kind = unit(name)
    if kind == "s":
        return seconds(value) if abs(value) < 60 else _clock(value)
    if kind == "bytes":
        return size(value)
    if name.endswith("share"):
        return f"{value:.1%}"
    shown = number(value)
    return f"{shown}{'' if kind == '/s' else ' '}{kind}" if kind else shown


def number(value: float) -> str:
    """A number for a label, short: `1.5k`, `0.25`."""
    if float(value).is_integer():
        return f"{int(value):,}" if abs(value) < 1e7 else _shortened(value)
    return f"{value:.4g}" if abs(value) < 1e4 else _shortened(value)


def _shortened(value: float) -> str:
    letter, size = next(((letter, size) for letter, size in _COUNTS if abs(value) >= size), ("", 1.0))
    return f"{value / size:.4g}{letter}" if abs(value) < 1e16 else f"{value:.3g}"


def _clock(value: float) -> str:
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
