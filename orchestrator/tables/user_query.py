"""A user's SQL query on the rows of a run, or on the runs of a storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa

from orchestrator.disk.rows.columns import check_case
from orchestrator.disk.rows.source import Source
from orchestrator.errors import UsageError, shorten
from orchestrator.nearest_names import find_nearest
from orchestrator.tables.conditions import advise_quotes
from orchestrator.tables.database import open_database
from orchestrator.tables.exact_results import fetch_exactly

if TYPE_CHECKING:
    import duckdb

_EXAMPLES = {
    "rows": "select avg(loss) from rows",
    "runs": "select name, best from runs",
}
"""A query of each table."""
_RUNS_BY_TAG = """
    create or replace view runs as
    select *, unnest(case when len(tags) > 0 then tags else [null] end) as tag from recorded
"""
_NO_TABLE = "Table with name"
"""What DuckDB begins the error about an unknown table with."""
_LIST_COLUMNS = 'To list the columns: hookyard query "select column_name from (describe runs)"'


def query(source: Source, sql: str) -> pd.DataFrame:
    """Run a user's query on the table `rows`, and return its result. The query can read nothing
    else and cannot write.

    Raises UsageError unless it is a single valid `select`.
    """
    check_case(source.schema.names)
    connection = open_database()
    connection.register("rows", source.rows)
    connection.execute("set lock_configuration = true")
    with (
        closing(connection),
        _explaining_errors(_explain_about_rows),
        source.raising_damaged_file(),
    ):
        return _select(connection, sql, "rows")


def query_table_of_runs(table: pa.Table, sql: str) -> pd.DataFrame:
    """Run a user's query on the table `runs`, as `query` does.

    A query that names the column `tag` sees a run once for each of its tags. The error of an
    invalid one is a line with the nearest name.
    """
    connection = open_database()
    connection.register("recorded", table)
    connection.execute("create view runs as from recorded")
    connection.execute("set lock_configuration = true")
    explain = partial(_explain_about_runs, sql=sql, columns=table.column_names)
    with closing(connection), _explaining_errors(explain):
        return _select_with_tags(connection, sql)


@contextmanager
def _explaining_errors(explain: Callable[[str], str]) -> Iterator[None]:
    """Raise DuckDB's errors as UsageError, with the message that `explain` makes of DuckDB's."""
    import duckdb

    try:
        yield
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


def _select_with_tags(connection: duckdb.DuckDBPyConnection, sql: str) -> pd.DataFrame:
    """Return the result of a select on the runs, or on the runs by tag if it needs that column."""
    import duckdb

    try:
        return _select(connection, sql, "runs")
    except duckdb.BinderException:
        connection.execute(_RUNS_BY_TAG)
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
