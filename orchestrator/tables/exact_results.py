"""Results of DuckDB queries as frames with exact numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from orchestrator.tables.database import quote

if TYPE_CHECKING:
    import duckdb

_Kind = Literal["Int64", "UInt64", "float64", "object"]
_CONSTRUCTORS: dict[_Kind, Callable[[Decimal], Any]] = {
    "Int64": int,
    "UInt64": int,
    "float64": float,
    "object": Decimal,
}
"""How a number becomes a value of a pandas type."""
_ROUNDED_KINDS = ("decimal", "hugeint", "uhugeint")
"""DuckDB's types of numbers that it turns into floats."""


def fetch_exactly(connection: duckdb.DuckDBPyConnection, sql: str) -> pd.DataFrame:
    """Return the result of a query with its exact numbers.

    DuckDB turns decimals and integers of 128 bits into floats. A sum of integers has 128 bits.
    """
    import duckdb

    try:
        result = connection.sql(sql)
    except duckdb.Error:
        connection.execute(sql)  # this error shows its place
        raise

    kinds = [kind.id for kind in result.types]
    columns = []
    for number, (name, kind) in enumerate(zip(result.columns, kinds, strict=True), start=1):
        value = f"#{number}::varchar" if kind in _ROUNDED_KINDS else f"#{number}"
        columns.append(f"{value} as {quote(name)}")

    frame: pd.DataFrame = result.project(", ".join(columns)).df()
    for position, kind in enumerate(kinds):
        if kind in _ROUNDED_KINDS:
            frame.isetitem(position, _parse_numbers(frame.iloc[:, position]).array)
        elif kind == "list":
            frame.isetitem(position, make_lists(frame.iloc[:, position]).array)
    return frame


def make_lists(arrays: pd.Series) -> pd.Series:
    """Return a column of NumPy arrays as lists."""
    return arrays.map(lambda array: array.tolist(), na_action="ignore")


def _parse_numbers(texts: pd.Series) -> pd.Series:
    """Return a column of numbers written as text in a 64-bit type if it holds all of them exactly,
    otherwise as Decimal objects."""
    written = texts.dropna()
    numbers = [Decimal(text) for text in written]
    kind = _choose_type(numbers, has_fractions=any("." in text for text in written))

    values: list[Any] = [*map(_CONSTRUCTORS[kind], numbers)]
    column = pd.Series(values, index=written.index, dtype=kind)
    if len(written) == len(texts):
        return pd.Series(column.to_numpy())  # without gaps NumPy's types suffice
    return column.reindex(texts.index)


def _choose_type(numbers: Sequence[Decimal], *, has_fractions: bool) -> _Kind:
    if has_fractions:
        is_exact = all(Decimal(str(float(number))) == number for number in numbers)
        return "float64" if is_exact else "object"

    lowest = min(numbers, default=Decimal())
    highest = max(numbers, default=Decimal())
    if lowest >= -(2**63) and highest < 2**63:
        return "Int64"
    return "UInt64" if lowest >= 0 and highest < 2**64 else "object"
