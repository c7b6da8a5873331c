"""Results of DuckDB queries as frames with exact numbers."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from orchestrator.tables.database import quote
from orchestrator.tables.exact_frames import make_lists

if TYPE_CHECKING:
    import duckdb
    from duckdb.sqltypes import DuckDBPyType

_ROUNDED_TYPES = ("decimal", "hugeint", "uhugeint")
"""DuckDB's types of numbers that it turns into floats."""


def fetch_exactly(connection: duckdb.DuckDBPyConnection, sql: str) -> pd.DataFrame:
    """Return the result of a query with its exact numbers, also in lists.

    DuckDB turns decimals and integers of 128 bits into floats. A sum of integers has 128 bits. The
    numbers are fetched as text instead.
    """
    import duckdb

    try:
        result = connection.sql(sql)
    except duckdb.Error:
        # Only the error of `execute` shows its place in the query.
        connection.execute(sql)
        raise

    elements = [*map(_find_element, result.types)]
    columns = []
    for number, (name, (element, depth)) in enumerate(
        zip(result.columns, elements, strict=True), start=1
    ):
        cast = f"::varchar{'[]' * depth}" if element.id in _ROUNDED_TYPES else ""
        columns.append(f"#{number}{cast} as {quote(name)}")

    frame: pd.DataFrame = result.project(", ".join(columns)).df()
    for position, (element, depth) in enumerate(elements):
        column = frame.iloc[:, position]
        is_rounded = element.id in _ROUNDED_TYPES
        if depth:
            column = make_lists(column)
        if depth and is_rounded:
            column = column.map(_parse_elements, na_action="ignore")
        elif is_rounded:
            column = _parse_numbers(column, has_fractions=_has_fractions(element))
        frame.isetitem(position, column.array)
    return frame


def _find_element(kind: DuckDBPyType) -> tuple[DuckDBPyType, int]:
    """Return the type of the elements of nested lists, and how deep they are; any other type is that
    of an element."""
    depth = 0
    while kind.id in ("list", "array"):
        kind = _get_parameter(kind, "child")
        depth += 1
    return kind, depth


def _has_fractions(number: DuckDBPyType) -> bool:
    return number.id == "decimal" and _get_parameter(number, "scale") > 0


def _get_parameter(kind: DuckDBPyType, name: str) -> Any:
    """Return a parameter of a type, such as the scale of a decimal."""
    return dict(kind.children)[name]


def _parse_elements(value: Any) -> Any:
    """Return nested lists of numbers written as text as lists of numbers."""
    if isinstance(value, list):
        return [_parse_elements(element) for element in value]
    if value is None:
        return None
    if "." not in value:
        return int(value)
    number = Decimal(value)
    return float(number) if _is_exact_as_float(number) else number


def _parse_numbers(texts: pd.Series, *, has_fractions: bool) -> pd.Series:
    """Return a column of numbers written as text in a 64-bit type if it holds all of them exactly,
    otherwise as Decimal objects."""
    written = texts.dropna()
    numbers = [Decimal(text) for text in written]
    dtype = _choose_dtype(numbers, has_fractions=has_fractions)

    values: list[Any] = numbers
    if dtype == "float64":
        values = [*map(float, numbers)]
    elif dtype != "object":
        values = [*map(int, numbers)]
    column = pd.Series(values, index=written.index, dtype=dtype)
    if len(written) == len(texts):
        return pd.Series(column.to_numpy())  # without gaps NumPy's types suffice
    return column.reindex(texts.index)


def _choose_dtype(
    numbers: Sequence[Decimal], *, has_fractions: bool
) -> Literal["Int64", "UInt64", "float64", "object"]:
    if has_fractions:
        return "float64" if all(map(_is_exact_as_float, numbers)) else "object"

    lowest = min(numbers, default=Decimal())
    highest = max(numbers, default=Decimal())
    if lowest >= -(2**63) and highest < 2**63:
        return "Int64"
    return "UInt64" if lowest >= 0 and highest < 2**64 else "object"


def _is_exact_as_float(number: Decimal) -> bool:
    return Decimal(str(float(number))) == number
