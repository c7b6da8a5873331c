"""Units: values as people read them and exactly. The name of a column tells what its values are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from orchestrator.stats.aggregate import quantities

_TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_SIZES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("bytes", 1.0))


def listed(values: Mapping[Any, Any]) -> str:
    """Names and values in a line, without those that are empty."""
    return ", ".join(
        f"{name} {shown}" for name, value in values.items() if (shown := quantities.text(str(name), value))
    )


def exact(name: str, value: Any) -> str | None:
    """A number with all its digits and its unit, for a look from near by; None where it is no number."""
    if not quantities.is_number(value):
        return None
    return f"{value.item() if isinstance(value, np.number) else value!r} {quantities.unit(name)}".rstrip()


def scale(name: str, largest: float) -> tuple[str, float]:
    """The unit for labels of an axis up to the largest value, and how much of the column's own unit one of it is."""
    steps = {"s": _TIMES, "bytes": _SIZES}.get(quantities.unit(name))
    if steps is None:
        return quantities.unit(name), 1.0
    return next((step for step in steps if abs(largest) >= step[1]), steps[-1] if largest else steps[-2])
