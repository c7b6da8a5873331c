"""The rows of a run as SQL queries see them, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from orchestrator.disk.rows.columns import COUNTER_TYPES, NAME_COLUMNS, check_case
from orchestrator.disk.rows.source import Source
from orchestrator.tables.conditions import check_condition, explain_errors
from orchestrator.tables.database import get_internal_database, quote
from orchestrator.tables.row_blocks import make_blocks_statement

if TYPE_CHECKING:
    import duckdb

MAX_EXACT_VALUES = 2**24
"""Maximum number of values for exact quantiles. More are sampled at random, down to about this
number."""
_KEYS = ("rank", "epoch", "iteration")
"""Columns that tell the rows of a run apart."""
TRAINING = "phase = 'train'"


class Rows:
    """The valid rows of a run that match the SQL condition `where`; queries see them as the table
    `rows`.

    In queries, measurements are doubles and NaN is null, as in pandas. Pyarrow reads the files
    instead of DuckDB: it detects damage and supports every storage. Raises DamagedFile.
    """

    def __init__(self, source: Source, where: str | None = None) -> None:
        if where is not None:
            check_condition(where)
        self.source = source
        self._where = where if source.has_rows else None
        self.columns: list[str] = source.schema.names
        self.numbers = [field.name for field in source.schema if _can_be_measurement(field)]
        """Columns that may hold measurements."""
        self.texts = [field.name for field in source.schema if _is_text(field)]
        self._connection = _connect(source, self._where, self.numbers)
        self._has_blocks = False

    @classmethod
    def wrap(cls, table: pd.DataFrame | pa.Table) -> Self:
        """Return the rows of a table in memory."""
        if isinstance(table, pd.DataFrame):
            # Arrow turns NaN into null, except in NumPy arrays.
            columns = {
                name: data.to_numpy() if data.dtype.kind == "f" else data
                for name, data in table.items()
            }
            table = pa.table({name: pa.array(column) for name, column in columns.items()})
        return cls(Source(ds.dataset(table)))

    def query(self, sql: str) -> pd.DataFrame:
        with self.source.raising_damaged_file(), explain_errors(self._where):
            result: pd.DataFrame = self._connection.sql(sql).df()
        return result

    def aggregate(
        self,
        expressions: Mapping[str, str],
        by: Sequence[str] = (),
        where: str = "true",
        table: Literal["rows", "blocks", "recorded"] = "rows",
    ) -> pd.DataFrame:
        """Return SQL aggregates by name, with the sorted groups as the index.

        They are those of the rows, of blocks of rows, or of the rows as they were recorded, with
        NaN.
        """
        if not expressions and not by:
            return pd.DataFrame(index=[0])
        if table == "blocks":
            self._create_blocks()
        columns = [f"{expression} as {quote(name)}" for name, expression in expressions.items()]
        grouping = f" group by {', '.join(by)} order by {', '.join(by)}" if by else ""
        groups = self.query(
            f"select {', '.join([*by, *columns])} from {table} where {where}{grouping}"
        )
        if not by:
            return groups
        return groups.set_index([*groups.columns[: len(by)]])

    def quantiles(
        self, expressions: Mapping[str, str], at: Sequence[float], where: str = "true"
    ) -> pd.DataFrame:
        """Return the quantiles of SQL expressions, interpolated linearly; `at` is the index."""
        if not expressions:
            return pd.DataFrame(index=pd.Index(at))
        sample = self._sample(expressions, where)
        with np.errstate(invalid="ignore"):  # interpolation gives NaN next to infinity
            quantiles = sample.quantile([*at])
        if quantiles.isna().any(axis=None):
            quantiles = quantiles.fillna(sample.quantile([*at], interpolation="nearest"))
        return quantiles

    def medians(self, expressions: Mapping[str, str], by: str) -> pd.DataFrame:
        """Return the medians of SQL expressions for each value of the column `by`, which becomes
        the sorted index."""
        if not expressions:
            return self.aggregate({}, [by])
        sample = self._sample({by: by, **expressions}, "true", by)
        return sample.groupby(by)[[*expressions]].median()

    def _sample(self, expressions: Mapping[str, str], where: str, by: str = "0") -> pd.DataFrame:
        """Return SQL expressions of all rows, or of a random sample if there are many.

        The sample has about as many rows for each value of `by`, and all rows of small groups.
        """
        columns = ", ".join(
            f"{expression} as {quote(name)}" for name, expression in expressions.items()
        )
        if self.total * len(expressions) <= MAX_EXACT_VALUES:
            return self.query(f"select {columns} from rows where {where}")
        # hash() is unsigned: with a signed number DuckDB computes in 128 bits, which takes twice as
        # long.
        values = f"count(*) * {len(expressions)} * count(*) over ()"
        every = f"greatest(1, {values} // {MAX_EXACT_VALUES})::ubigint"
        groups = (
            f'select {by} as "(group)", {every} as "(every)" from rows where {where} group by 1'
        )
        numbered = "rows"
        key = ", ".join(_KEYS)
        if not {*_KEYS} <= {*self.columns}:
            numbered = '(select *, row_number() over () as "(row)" from rows)'
            key = '"(row)"'
        return self.query(
            f"with groups as ({groups}) select {columns} from {numbered}"
            f' join groups on {by} = "(group)"'
            f' where ({where}) and hash({key}) % "(every)" = 0'
        )

    @cached_property
    def total(self) -> int:
        if self._where:
            return int(self.query("select count(*) as n from rows")["n"].iloc[0])
        return self.source.count_rows()

    def _create_blocks(self) -> None:
        """Create the table `blocks`, unless it exists."""
        if self._has_blocks:
            return
        ranks = 1
        if "rank" in self.columns:
            ranks = int(self.aggregate({"ranks": "count(distinct rank)"})["ranks"].iloc[0])
        statement = make_blocks_statement(self.columns, self.numbers, self.total, ranks)
        with self.source.raising_damaged_file(), explain_errors(self._where):
            self._connection.execute(statement)
        self._has_blocks = True


def read_matching_rows(
    source: Source, columns: Sequence[str], where: str
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows that match an SQL condition. Raises UsageError if the condition is
    invalid."""
    check_condition(where)
    rows = _connect(source, where).sql(f"select {', '.join(map(quote, columns))} from rows")
    with source.raising_damaged_file(), explain_errors(where):
        yield from pa.RecordBatchReader.from_stream(rows)


def _connect(
    source: Source, where: str | None, measurements: Sequence[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Return a connection whose view `rows` has the rows that match a condition, with
    `measurements` as doubles.

    Raises UsageError if the condition does not fit the columns.
    """
    check_case(source.schema.names)
    connection = get_internal_database().cursor()
    connection.register("recorded", source.rows)
    columns = []
    for field in source.schema:
        value = quote(field.name)
        if field.name in measurements:
            value += "::double"
        if field.name in measurements or pa.types.is_floating(field.type):
            value = f"case when isnan({value}) then null else {value} end"
        columns.append(f"{value} as {quote(field.name)}")
    view = f"select {', '.join(columns)} from recorded"
    condition = f" where ({where}\n)" if where else ""
    with explain_errors(where, source.schema.names, is_checking=True):
        connection.execute(f"create temporary view rows as select * from ({view}){condition}")
    return connection


def _can_be_measurement(field: pa.Field) -> bool:
    if field.name in (*COUNTER_TYPES, *NAME_COLUMNS):
        return False
    tests = (
        pa.types.is_floating,
        pa.types.is_integer,
        pa.types.is_decimal,
        pa.types.is_null,
    )
    return any(is_kind(field.type) for is_kind in tests)


def _is_text(field: pa.Field) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
    return field.name in NAME_COLUMNS or any(is_kind(field.type) for is_kind in tests)
