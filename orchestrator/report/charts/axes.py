"""Axes of charts: the unit in which values are shown, and whether the axis is logarithmic."""

from typing import Any

import numpy as np

from orchestrator import units
from orchestrator.report.binning import Floats

MIN_LOG_RATIO = 100.0
"""Smallest ratio of the largest to the smallest value for a logarithmic axis."""
_TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_SIZES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("bytes", 1.0))
"""Units of seconds and of bytes with their sizes, the largest first."""


def make_value_axis(
    name: str, values: Floats, *, from_zero: bool = False
) -> tuple[float, dict[str, Any]]:
    """Return the size of the axis's unit relative to the column's unit, and the axis."""
    finite = values[np.isfinite(values)]
    unit, size = choose_unit(units.get_unit(name), float(np.abs(finite).max(initial=0.0)))
    axis: dict[str, Any] = {
        "ticksuffix": unit if unit == "/s" else f" {unit}".rstrip(),
        "hoverformat": ".4~g",
    }
    if from_zero or len(np.unique(finite)) == 1:  # plotly draws a constant between -1 and 1
        axis["rangemode"] = "tozero"
    elif needs_log_axis(name, finite):
        axis["type"] = "log"
        axis["dtick"] = "D2" if finite.max() / finite.min() < 1e3 else 1
    return size, axis


def needs_log_axis(name: str, values: Floats) -> bool:
    """Return whether a column's values span enough magnitudes for a logarithmic axis, which bytes
    never have."""
    known = values[np.isfinite(values)]
    if units.get_unit(name) == "bytes" or not len(known) or known.min() <= 0:
        return False
    return bool(known.max() / known.min() >= MIN_LOG_RATIO)


def choose_unit(unit: str, largest: float) -> tuple[str, float]:
    """Choose the unit in which to show numbers up to `largest`, and return it with its size in the
    given unit."""
    scales = {"s": _TIMES, "bytes": _SIZES}.get(unit, ((unit, 1.0),))
    return next((scale for scale in scales if largest >= scale[1]), scales[-1])
