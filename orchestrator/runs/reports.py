"""The reports of a run as a table, and other rows of plain data. Does not need Ray."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import pandas as pd


def make_table(reports: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row per report; integers that floats would round stay integers."""
    table = make_frame(reports)
    if "time" in table:
        table["time"] = pd.to_datetime(table["time"], utc=True)
    return table


def make_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame; integers that floats would round stay integers."""
    frame = pd.DataFrame(rows)
    for name in frame.select_dtypes("float64"):
        if not frame[name].abs().max() >= 2**53:
            continue  # asking each value would take long for many rows
        values = [row.get(str(name)) for row in rows]
        integers = [value for value in values if isinstance(value, int)]
        if any(abs(integer) > 2**53 for integer in integers):
            dtype: Literal["UInt64", "Int64"] = "UInt64" if max(integers) >= 2**63 else "Int64"
            with suppress(TypeError, ValueError, OverflowError):  # other rows have fractions
                frame[name] = pd.array(values, dtype=dtype)
    return frame
