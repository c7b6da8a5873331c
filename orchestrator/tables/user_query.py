"""A user's SQL query on the rows of a run, or on the runs of a storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import pyarrow as pa

from orchestrator.disk.rows.columns import check_case
from orchestrator.disk.rows.source import Source
from orchestrator.errors import UsageError, shorten
from orchestrator.nearest_names import find_nearest
from orchestrator.tables.conditions import advise_quotes
from orchestrator.tables.database import open_database, quote

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
_EXAMPLES = {
    "rows": "select avg(loss) from rows",
    "runs": "select name, best from runs",
}
"""A query of each table."""
_RUNS_BY_TAG = """
    create or replace view runs as
    select *, unnest(case when len(tags) > 0 then tags else [null] end) as tag from recorded
"""
_LIST_COLUMNS = 'To list the columns: hookyard query "select column_name from (describe runs)"'


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
        with source.raising_damaged_file():
            return _select(connection, sql, "rows")
    except duckdb.Error as error:
        message = str(error).partition(": ")[2].partition("\nDid you mean")[0]
        if isinstance(error, duckdb.CatalogException):
            message += "; the only table is `rows`"
        raise UsageError(f"query: {message}") from None
    finally:
        connection.close()


def query_table_of_runs(table: pa.Table, sql: str) -> pd.DataFrame:
    """Run a user's query on the table `runs`, as `query` does.

    A query that names the column `tag` sees a run once for each of its tags. The error of an
    invalid one is a line with the nearest name.
    """
    import duckdb

    connection = open_database()
    connection.register("recorded", table)
    connection.execute("create view runs as from recorded")
    connection.execute("set lock_configuration = true")
    try:
        try:
            return _select(connection, sql, "runs")
        except duckdb.BinderException:
            connection.execute(_RUNS_BY_TAG)
            return _select(connection, sql, "runs")
    except duckdb.Error as error:
        message = str(error).partition(": ")[2].partition("\n")[0].rstrip("!")
        raise UsageError(f"query: {_explain(message, sql, table.column_names)}") from None
    finally:
        connection.close()


def _explain(message: str, sql: str, columns: Sequence[str]) -> str:
    """Return an error about the table `runs`, with the name that was probably meant."""
    if message.startswith("Table with name"):
        return f"{message}; the only table is `runs`"
    unknown = re.match(r'Referenced (?:column|table) "(.*?)" not found', message)
    if unknown is None:
        return message

    name = unknown[1]
    # Without double quotes, SQL takes val/accuracy for a division.
    written = re.search(rf'(?<!["\w]){re.escape(name)}[./][\w./]+', sql)
    nearest = find_nearest(written[0] if written else name, columns)
    message = f"there is no column {name}"
    if nearest and written:
        return f'{message}; did you mean "{nearest}", in double quotes?'
    if nearest:
        return f'{message}; did you mean "{nearest}"?'
    advice = advise_quotes(name, sql) or f" {_LIST_COLUMNS}"
    return f"{message}.{advice}"


def _select(connection: duckdb.DuckDBPyConnection, sql: str, table: str) -> pd.DataFrame:
    """Return the result of a single select on a table. Raises DuckDB's errors."""
    import duckdb

    statements = connection.extract_statements(sql)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise UsageError(
            f"query: must be a single select, such as {_EXAMPLES[table]}, got {shorten(sql, 200)!r}"
        )
    return _fetch_exactly(connection, sql)


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
