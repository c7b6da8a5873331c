"""Units: values as people read them and exactly. The name of a column tells what its values are."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from orchestrator.stats import quantities

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
_TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_SIZES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("bytes", 1.0))
_COUNTS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


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
    if not quantities.is_number(value):
        return str(value)
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    kind = unit(name)
    if kind == "s":
        return quantities.seconds(value) if abs(value) < 60 else _long(value)
    if kind == "bytes":
        return quantities.size(value)
    if name.endswith("share"):
        return f"{value:.1%}"
    shown = number(value)
    return f"{shown}{'' if kind == '/s' else ' '}{kind}" if kind else shown


def listed(values: Mapping[Hashable, Any]) -> str:
    """Names and values in a line, without those that are empty."""
    return ", ".join(f"{name} {shown}" for name, value in values.items() if (shown := text(str(name), value)))


def exact(name: str, value: Any) -> str | None:
    """A number with all its digits and its unit, for a look from near by; None where it is no number."""
    return (
        f"{value.item() if isinstance(value, np.number) else value!r} {unit(name)}".rstrip()
        if quantities.is_number(value)
        else None
    )


def scale(name: str, largest: float) -> tuple[str, float]:
    """The unit for labels of an axis up to the largest value, and how much of the column's own unit one of it is."""
    steps = {"s": _TIMES, "bytes": _SIZES}.get(unit(name))
    if steps is None:
        return unit(name), 1.0
    return next((step for step in steps if abs(largest) >= step[1]), steps[-1] if largest else steps[-2])


def number(value: float) -> str:
    """A number for a label, short: `1.5k`, `0.25`."""
    if float(value).is_integer():
        return f"{int(value):,}" if abs(value) < 1e7 else _shortened(value)
    return f"{value:.4g}" if abs(value) < 1e4 else _shortened(value)


def _shortened(value: float) -> str:
    letter, size = next(((letter, size) for letter, size in _COUNTS if abs(value) >= size), ("", 1.0))
    return f"{value / size:.4g}{letter}" if abs(value) < 1e16 else f"{value:.3g}"


def _long(value: float) -> str:
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
