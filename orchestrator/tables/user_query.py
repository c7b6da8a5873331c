"""A user's SQL query on the rows of a run, or on the runs of a storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from orchestrator.disk.rows.columns import check_case
from orchestrator.disk.rows.source import Source
from orchestrator.errors import UsageError, shorten
from orchestrator.nearest_names import find_nearest
from orchestrator.tables.conditions import advise_quotes, make_lack_of_room_error
from orchestrator.tables.database import open_database
from orchestrator.tables.exact_results import fetch_exactly

if TYPE_CHECKING:
    import duckdb

_EXAMPLES = {
    "rows": "select avg(loss) from rows",
    "runs": "select name, best from runs",
}
"""A query of each table."""
_BY_TAG = "*, unnest(case when len(tags) > 0 then tags else [null] end) as tag"
_NO_TABLE = "Table with name"
"""What DuckDB begins the error about an unknown table with."""
_LIST_COLUMNS = 'To list the columns: hookyard query "select column_name from (describe runs)"'


def query(source: Source, sql: str) -> pd.DataFrame:
    """Run a user's query on the table `rows`, and return its result. The query can read nothing
    else and cannot write.

    Raises UsageError unless it is a single valid `select`.
    """
    check_case(source.schema.names)
    with (
        _open_table("rows", source.rows) as connection,
        _explaining_errors("rows", _explain_about_rows),
        source.raising_damaged_file(),
    ):
        return _select(connection, sql, "rows")


def query_table_of_runs(table: pa.Table, sql: str) -> pd.DataFrame:
    """Run a user's query on the table `runs`, as `query` does.

    A query that names the column `tag` sees a run once for each of its tags. The error of an
    invalid one is a line with the nearest name.
    """
    explain = partial(_explain_about_runs, sql=sql, columns=[*table.column_names, "tag"])
    with _open_table("runs", table) as connection, _explaining_errors("runs", explain):
        return _select_with_tags(connection, table, sql)


@contextmanager
def _open_table(name: str, content: Any) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database with one table, whose settings a query cannot change."""
    with closing(open_database()) as connection:
        connection.register(name, content)
        connection.execute("set lock_configuration = true")
        yield connection


@contextmanager
def _explaining_errors(table: str, explain: Callable[[str], str]) -> Iterator[None]:
    """Raise DuckDB's errors as UsageError, with the message that `explain` makes of DuckDB's."""
    import duckdb

    try:
        yield
    except duckdb.InterruptException:
        raise
    except duckdb.OperationalError as error:
        raise make_lack_of_room_error(error, table) from None
    except duckdb.Error as error:
        _, _, message = str(error).partition(": ")  # without the kind of error
        raise UsageError(f"query: {explain(message)}") from None


def _explain_about_rows(message: str) -> str:
    """Return an error about the table `rows`, with its place in the query."""
    text = message.partition("\nDid you mean")[0]
    return f"{text}; the only table is `rows`" if message.startswith(_NO_TABLE) else text


def _explain_about_runs(message: str, sql: str, columns: Sequence[str]) -> str:
    """Return an error about the table `runs`, with the name that was probably meant."""
    message = message.partition("\n")[0].rstrip("!")
    if message.startswith(_NO_TABLE):
        return f"{message}; the only table is `runs`"
    unknown = re.match(r'Referenced (column|table) "(.*?)" not found', message)
    if unknown is None:
        return message

    kind, name = unknown.groups()
    # Without double quotes, SQL takes val/accuracy for a division, and optimizer.lr for a column of
    # a table.
    written = re.search(rf'(?<!["\w]){re.escape(name)}[./][\w./]+', sql)
    nearest = find_nearest(written[0] if written else name, columns)
    if nearest and written and not nearest.isidentifier():
        return f'there is no column {name}; did you mean "{nearest}", in double quotes?'
    if kind == "table":
        return f"there is no table {name}; the only table is `runs`"
    if nearest:
        return f'there is no column {name}; did you mean "{nearest}"?'
    advice = advise_quotes(name, sql) or f" {_LIST_COLUMNS}"
    return f"there is no column {name}.{advice}"


def _select_with_tags(
    connection: duckdb.DuckDBPyConnection, table: pa.Table, sql: str
) -> pd.DataFrame:
    """Return the result of a select on the runs, or on the runs by tag if it needs that column."""
    import duckdb

    try:
        return _select(connection, sql, "runs")
    except duckdb.BinderException as error:
        if '"tag"' not in str(error).lower():
            raise

    connection.unregister("runs")
    connection.from_arrow(table).project(_BY_TAG).create_view("runs")
    return _select(connection, sql, "runs")


def _select(connection: duckdb.DuckDBPyConnection, sql: str, table: str) -> pd.DataFrame:
    """Return the result of a single select on a table. Raises DuckDB's errors."""
    import duckdb

    statements = connection.extract_statements(sql)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise UsageError(
            f"query: must be a single select, such as {_EXAMPLES[table]}, got {shorten(sql, 200)!r}"
        )
    return fetch_exactly(connection, sql)
