"""A user's SQL query on the rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from orchestrator.disk.rows.columns import check_case
from orchestrator.disk.rows.dataset import Source
from orchestrator.errors import UsageError, shorten
from orchestrator.tables.database import open_database
from orchestrator.tables.row_blocks import quote

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


def query(source: Source, sql: str) -> pd.DataFrame:
    """Run a user's query on the table `rows`, and return its result. The query can read nothing
    else and cannot write.

    Raises UsageError unless it is a single valid `select`.
    """
    import duckdb

    check_case(source.schema.names)
    connection = open_database()
    connection.register("rows", source.rows)
    connection.execute("set lock_configuration = true")
    try:
        statements = connection.extract_statements(sql)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise UsageError(
                "query: must be a single select, such as select avg(loss) from rows, got"
                f" {shorten(sql, 200)!r}"
            )
        with source.raising_damaged_file():
            return _fetch_exactly(connection, sql)
    except duckdb.Error as error:
        message = str(error).partition(": ")[2].partition("\nDid you mean")[0]
        table = "; the only table is `rows`" if isinstance(error, duckdb.CatalogException) else ""
        raise UsageError(f"query: {message}{table}") from None
    finally:
        connection.close()


def _fetch_exactly(connection: duckdb.DuckDBPyConnection, sql: str) -> pd.DataFrame:
    """Return the result of a query with its exact numbers.

    DuckDB turns decimals and integers of 128 bits into floats. A sum of integers has 128 bits.
    """
    import duckdb

    try:
        result = connection.sql(sql)
    except duckdb.Error:
        connection.execute(sql)  # this error shows its place
        raise

    positions = [
        position
        for position, kind in enumerate(result.types)
        if kind.id in ("decimal", "hugeint", "uhugeint")
    ]
    columns = [
        f"#{position + 1}{'::varchar' * (position in positions)} as {quote(name)}"
        for position, name in enumerate(result.columns)
    ]
    frame: pd.DataFrame = result.project(", ".join(columns)).df()
    for position in positions:
        frame.isetitem(position, _parse_numbers(frame.iloc[:, position]).array)
    return frame


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
