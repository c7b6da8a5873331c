"""Results of DuckDB queries as frames with exact numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Self

import pandas as pd

from orchestrator.tables.database import quote
from orchestrator.tables.exact_frames import make_lists

if TYPE_CHECKING:
    import duckdb
    from duckdb.sqltypes import DuckDBPyType

_ROUNDED_TYPES = ("decimal", "hugeint", "uhugeint", "bignum")
"""DuckDB's types of numbers that it turns into floats, or into nothing at all."""


def fetch_exactly(connection: duckdb.DuckDBPyConnection, sql: str) -> pd.DataFrame:
    """Return the result of a query with its exact numbers, also in lists.

    DuckDB turns decimals and integers of 128 bits into floats. A sum of integers has 128 bits. The
    numbers are fetched as text instead.
    """
    result = _run(connection, sql)
    columns = [
        _Column.make(name, kind) for name, kind in zip(result.columns, result.types, strict=True)
    ]
    # By their numbers, because several columns may have one name.
    selected = [column.select(number) for number, column in enumerate(columns, start=1)]
    frame: pd.DataFrame = result.project(", ".join(selected)).df()
    for position, column in enumerate(columns):
        restored = column.restore(frame.iloc[:, position])
        frame.isetitem(position, restored.array)
    return frame


def _run(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    import duckdb

    try:
        return connection.sql(sql)
    except duckdb.Error:
        # Only the error of `execute` shows its place in the query.
        connection.execute(sql)
        raise


@dataclass(frozen=True)
class _Column:
    """A column of a result."""

    name: str
    element: DuckDBPyType
    """Type of its values, or of the elements of its nested lists."""
    depth: int
    """How deep its lists are nested; 0 without lists."""

    @classmethod
    def make(cls, name: str, kind: DuckDBPyType) -> Self:
        depth = 0
        while kind.id in ("list", "array"):
            kind = _get_parameter(kind, "child")
            depth += 1
        return cls(name, kind, depth)

    @property
    def is_rounded(self) -> bool:
        """True if DuckDB would turn its numbers into floats."""
        return self.element.id in _ROUNDED_TYPES

    def select(self, number: int) -> str:
        """Return the SQL that selects the column by its number, as text if it would be rounded."""
        cast = f"::varchar{'[]' * self.depth}" if self.is_rounded else ""
        return f"#{number}{cast} as {quote(self.name)}"

    def restore(self, fetched: pd.Series) -> pd.Series:
        """Return the fetched column with its exact numbers, and with lists as lists."""
        if self.depth:
            lists = make_lists(fetched)
            return lists.map(_parse_elements, na_action="ignore") if self.is_rounded else lists
        if self.is_rounded:
            return _parse_numbers(fetched, has_fractions=_has_fractions(self.element))
        return fetched


def _has_fractions(number: DuckDBPyType) -> bool:
    return number.id == "decimal" and _get_parameter(number, "scale") > 0


def _get_parameter(kind: DuckDBPyType, name: str) -> Any:
    """Return a parameter of a type, such as the scale of a decimal."""
    return dict(kind.children)[name]


def _parse_elements(value: Any) -> Any:
    """Parse the text in nested lists as numbers, each by itself: an element has no column whose type
    it could change."""
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
