"""The reports of a run as a table. Does not need Ray."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import pandas as pd


def make_table(reports: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row per report; integers that floats would round stay integers."""
    table = pd.DataFrame(reports)
    for name in table.select_dtypes("float64"):
        values = [report.get(str(name)) for report in reports]
        integers = [value for value in values if isinstance(value, int)]
        if any(abs(integer) > 2**53 for integer in integers):
            dtype: Literal["UInt64", "Int64"] = "UInt64" if max(integers) >= 2**63 else "Int64"
            with suppress(TypeError, ValueError, OverflowError):  # other reports have fractions
                table[name] = pd.array(values, dtype=dtype)
    if "time" in table:
        table["time"] = pd.to_datetime(table["time"], utc=True)
    return table
