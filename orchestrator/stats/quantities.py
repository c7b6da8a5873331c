"""Quantities as people read them."""

from numbers import Real
from typing import Any


def is_number(value: Any) -> bool:
    """Whether a value is a number, and one at all."""
    return not isinstance(value, bool) and isinstance(value, Real) and bool(value == value)


def seconds(value: float) -> str:
    """`12.3 ms`, `1.5 s`."""
    return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"


def size(value: float) -> str:
    """`12.3 MiB`, `1.5 GiB`."""
    return f"{value / 2**20:.3g} MiB" if abs(value) < 2**30 else f"{value / 2**30:.3g} GiB"


def duration(value: float) -> str:
    """What people wait for or look back on: `12 s`, `3 min`, `2 h 05 min`."""
    if value < 90:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
