"""SQL queries on the rows of a run, in bounded memory. Only this module uses DuckDB, and imports it
lazily."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import finalize

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from orchestrator.disk.rows.columns import check_case
from orchestrator.disk.rows.dataset import Source, temporary_folder
from orchestrator.errors import UsageError, did_you_mean, shorten
from orchestrator.tables.row_blocks import make_blocks_statement, quote

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "768MiB"
"""Memory limit of DuckDB, which spills to disk beyond it."""
MAX_EXACT_VALUES = 2**24
"""Maximum number of values for exact quantiles. More are sampled at random, down to about this
number."""
MAX_CONDITION_LENGTH = 50_000
"""Maximum number of characters in a condition."""
COUNTER_COLUMNS = ("rank", "epoch", "iteration", "step", "samples", "batch_size", "attempt")
"""Integer columns that are not measurements."""
NAME_COLUMNS = ("node", "phase", "trial")
TRAINING = "phase = 'train'"
_Kind = Literal["Int64", "UInt64", "float64", "object"]
_CONSTRUCTORS: dict[_Kind, Callable[[Decimal], Any]] = {
    "Int64": int,
    "UInt64": int,
    "float64": float,
    "object": Decimal,
}
"""How a number becomes a value of a pandas type."""


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
        self.numbers = [field.name for field in source.schema if _may_be_measurement(field)]
        """Columns that may hold measurements."""
        self.texts = [field.name for field in source.schema if _is_text(field)]
        self._connection = _connect(source, self._where, self.numbers)

    @classmethod
    def wrap(cls, table: pd.DataFrame | pa.Table) -> Self:
        if isinstance(table, pd.DataFrame):
            # Arrow turns NaN into null, except in NumPy arrays.
            columns = {
                name: data.to_numpy() if data.dtype.kind == "f" else data
                for name, data in table.items()
            }
            table = pa.table({name: pa.array(column) for name, column in columns.items()})
        return cls(Source(ds.dataset(table)))

    def query(self, sql: str) -> pd.DataFrame:
        with self.source.raising_damaged_file(), _explain_errors(self._where):
            result: pd.DataFrame = self._connection.sql(sql).df()
        return result

    def aggregate(
        self,
        expressions: Mapping[str, str],
        by: Sequence[str] = (),
        where: str = "true",
        table: str = "rows",
    ) -> pd.DataFrame:
        """Return SQL aggregates by name, with the sorted groups as the index. `table` is `rows` or
        `blocks`."""
        if not expressions and not by:
            return pd.DataFrame(index=[0])
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
        return self.query(
            f"with groups as ({groups}) select {columns} from rows"
            f' join groups on {by} = "(group)"'
            f' where ({where}) and hash(rank, epoch, iteration) % "(every)" = 0'
        )

    @cached_property
    def total(self) -> int:
        if self._where:
            return int(self.query("select count(*) as n from rows")["n"].iloc[0])
        return self.source.count_rows()

    @cached_property
    def blocks(self) -> str:
        """Name of the table of blocks, created on first use."""
        statement = make_blocks_statement(self.columns, self.numbers, self.total)
        with self.source.raising_damaged_file(), _explain_errors(self._where):
            self._connection.execute(statement)
        return "blocks"


def read_matching_rows(
    source: Source, columns: Sequence[str], where: str
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows that match an SQL condition. Raises UsageError if the condition is
    invalid."""
    check_condition(where)
    rows = _connect(source, where).sql(f"select {', '.join(map(quote, columns))} from rows")
    with source.raising_damaged_file(), _explain_errors(where):
        yield from pa.RecordBatchReader.from_stream(rows)


def _connect(
    source: Source, where: str | None, measurements: Sequence[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Return a connection whose view `rows` has the rows that match a condition, with
    `measurements` as doubles.

    Raises UsageError if the condition does not fit the columns.
    """
    check_case(source.schema.names)
    connection = _get_internal_database().cursor()
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
    with _explain_errors(where, source.schema.names, is_checking=True):
        connection.execute(f"create temporary view rows as select * from ({view}){condition}")
    return connection


def check_condition(where: str) -> None:
    """Raise UsageError unless `where` is a single SQL condition."""
    if not isinstance(where, str):
        raise UsageError(f"where: must be text with a condition in SQL, got {where!r}")
    if len(where) > MAX_CONDITION_LENGTH:
        raise UsageError(
            f"where: must have at most {MAX_CONDITION_LENGTH:,} characters, got {len(where):,}"
        )
    with _explain_errors(where, is_checking=True):
        # Parse it bare and in parentheses, which rejects an unbalanced `)`.
        for text in (where, f"({where}\n)"):
            if len(_get_internal_database().extract_statements(f"select 1 where {text}")) != 1:
                raise UsageError(
                    f"where: {shorten(where, 200)!r} contains a semicolon; write a single condition"
                )


@contextmanager
def _explain_errors(
    where: str | None, columns: Sequence[str] = (), *, is_checking: bool = False
) -> Iterator[None]:
    """Turn DuckDB's errors about a condition into UsageErrors that quote it, and those of a lack of
    room too."""
    import duckdb

    try:
        yield
    except duckdb.InterruptException:
        raise
    except duckdb.Error as error:
        reason = str(error).splitlines()[0].partition(": ")[2]
        if isinstance(error, duckdb.OperationalError):  # memory or disk is used up
            raise UsageError(f"the rows cannot be queried here: {shorten(reason, 300)}") from None
        if where is None:
            raise
        if not is_checking:
            raise UsageError(f"where: the condition failed: {shorten(reason, 300)}") from None
        unknown = re.match(r'Referenced column "(.*)" not found', reason)
        if unknown:
            advice = _advise_quotes(unknown[1], where)
            if columns and not advice:
                check_columns([unknown[1]], columns)
            reason += advice
        raise UsageError(
            f"where: {shorten(reason.rstrip('!'), 300)}; write an SQL condition, such as"
            " rank = 0 and phase = 'train'"
        ) from None


def _advise_quotes(name: str, where: str) -> str:
    """Return what to do if an unknown column is meant as text; empty if it is not."""
    if f'"{name}"' in where:
        return " Put text in single quotes"
    if re.search(rf"=\s*{re.escape(name)}\b", where):
        return f" Quote text: '{name}'"
    return ""


def uses_column(where: str, column: str) -> bool:
    """Return whether a condition uses a column. Raises UsageError if the condition is invalid."""
    check_condition(where)
    without_text = re.sub("'[^']*'", "", where)
    found = re.search(rf"\b{re.escape(column)}\b", without_text, re.IGNORECASE)
    return found is not None


def check_columns(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise UsageError for the first unknown column, and suggest the nearest name."""
    if isinstance(names, str):
        raise UsageError(f"columns must be a list of names, such as ['{shorten(names, 200)}']")
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"available: {', '.join(sorted(known))}"
            raise UsageError(f"there is no column '{shorten(name, 200)}'; {hint}")


def query(source: Source, sql: str) -> pd.DataFrame:
    """Run a user's query on the table `rows`, and return its result. The query can read nothing
    else and cannot write.

    Raises UsageError unless it is a single valid `select`.
    """
    import duckdb

    check_case(source.schema.names)
    connection = _open_database()
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


def _open_database() -> duckdb.DuckDBPyConnection:
    """Open an empty in-memory database without access to files or Python variables."""
    import duckdb

    folder = temporary_folder()
    connection = duckdb.connect(
        config={
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": folder,
            "preserve_insertion_order": "false",
        }
    )
    finalize(connection, shutil.rmtree, folder, ignore_errors=True)
    for setting in (
        "enable_external_access",
        "autoload_known_extensions",
        "python_enable_replacements",
        "enable_progress_bar",
    ):
        connection.execute(f"set {setting} = false")
    return connection


@cache
def _get_internal_database() -> duckdb.DuckDBPyConnection:
    """Return the database for this package's own queries; each query has its own cursor."""
    return _open_database()


def _may_be_measurement(field: pa.Field) -> bool:
    if field.name in (*COUNTER_COLUMNS, *NAME_COLUMNS):
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
