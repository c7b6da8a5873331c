"""Queries: the rows of a run asked in SQL, in bounded memory however many there are. DuckDB is known here alone, and
imported with the first."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import finalize

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from orchestrator.errors import DamagedFile, UsageError, shortened
from orchestrator.stats.aggregate.blocks import blocks_of, quoted
from orchestrator.stats.read.recorded_files import ADVICE

if TYPE_CHECKING:
    import duckdb

MEMORY = "768MiB"
"""What DuckDB may hold; more it writes to a temporary folder."""
AT_ONCE = 2**24
"""So many numbers may be held to take quantiles of them."""
SAMPLE = 2**20
"""Rows, about, that tell where the quantiles of more lie."""
DEVIATIONS = 4.0
"""How far around a sample's quantile that of all rows is looked for; four times as far where it is not found."""
COUNTERS = ("rank", "epoch", "iteration", "step", "samples", "batch_size", "attempt")
"""Columns of whole numbers that are no measurements."""
NAMES = ("node", "phase", "trial")
"""Columns of text that every row has."""
MOMENT = (
    "((case split_part(phase, '/', 1) when 'train' then 0::bigint when 'val' then 1 when 'test' then 2 else 3 end <<"
    " 61) + (epoch::bigint << 31) + iteration)"
)
"""A number that orders rows by phase as they are run, epoch and iteration."""
_SPILLS = "hookyard-query-"


@dataclass(frozen=True)
class Source:
    """Rows that DuckDB is fed with."""

    data: ds.Dataset
    condition: Any = None
    """An expression of pyarrow's that those rows meet which are meant; None where it is all."""

    @property
    def rows(self) -> ds.Dataset:
        """Those that are meant."""
        return self.data if self.condition is None else self.data.filter(self.condition)

    @contextmanager
    def telling_damage(self) -> Iterator[None]:
        """Within it an error is raised as DamagedFile where a file that is read is damaged."""
        import duckdb

        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            for fragment in self.data.get_fragments():
                try:
                    for _ in fragment.to_batches():
                        pass
                except (pa.ArrowException, OSError) as reason:
                    raise DamagedFile(fragment.path, str(reason), ADVICE) from error
            raise


class Rows:
    """The rows of a run that count, asked in SQL as the table `rows`.

    There, measurements are doubles, and those that are not a number (NaN) are empty, as in pandas. Files are read by
    pyarrow, which tells damage and knows every storage: DuckDB is fed, and opens none. Raises DamagedFile.
    """

    def __init__(self, source: Source) -> None:
        self.source, schema = source, source.data.schema
        self.columns: list[str] = schema.names
        self.numbers: list[str] = [
            field.name for field in schema if field.name not in (*COUNTERS, *NAMES) and _is_number(field.type)
        ]
        """The columns that may hold measurements."""
        self.texts = [field.name for field in schema if field.name in NAMES or _is_text(field.type)]

    @classmethod
    def of(cls, table: pd.DataFrame | pa.Table) -> Self:
        """The rows of a table in memory."""
        return cls(
            Source(
                ds.dataset(table if isinstance(table, pa.Table) else pa.Table.from_pandas(table, preserve_index=False))
            )
        )

    def ask(self, sql: str) -> pd.DataFrame:
        """What a query of our own answers."""
        with self.source.telling_damage():
            found: pd.DataFrame = self._connection.sql(sql).df()
        return found

    def aggregate(
        self, expressions: Mapping[str, str], by: Sequence[str] = (), where: str = "true", of: str = "rows"
    ) -> pd.DataFrame:
        """SQL aggregates by name, for each group in order, which is the index; without groups of all rows. `of` may be
        `blocks`."""
        if not expressions and not by:
            return pd.DataFrame(index=[0])
        named = [f"{expression} as {quoted(name)}" for name, expression in expressions.items()]
        grouping = f" group by {', '.join(by)} order by {', '.join(by)}" if by else ""
        table = self.ask(f"select {', '.join([*by, *named])} from {of} where {where}{grouping}")
        return table.set_index([*table.columns[: len(by)]]) if by else table

    def quantiles(self, expressions: Mapping[str, str], at: Sequence[float], where: str = "true") -> pd.DataFrame:
        """The exact quantiles of SQL expressions by name, between two values in a straight line; `at` is the index."""
        if not expressions:
            return pd.DataFrame(index=pd.Index(at))
        if self._are_few(expressions):
            return self.ask(_selected(expressions, where=where)).quantile([*at])
        values = _Selection(self._batches, expressions, at, where=where).values(max(1, self.total // SAMPLE))
        return pd.DataFrame(values[0].T, pd.Index(at), [*expressions])

    def medians(self, expressions: Mapping[str, str], by: str, where: str = "true") -> pd.DataFrame:
        """The exact medians of SQL expressions by name, for each value of a column in order, which is the index."""
        if not expressions:
            return self.aggregate({}, [by], where)
        if self._are_few(expressions):
            return self.ask(_selected({by: by, **expressions}, where=where)).groupby(by)[[*expressions]].median()
        groups = self.aggregate({}, [by], where).index
        values = _Selection(self._batches, expressions, [0.5], by, groups.tolist(), where).values(
            max(1, self.total // SAMPLE)
        )
        return pd.DataFrame(values[:, :, 0], groups, [*expressions])

    @cached_property
    def total(self) -> int:
        """How many rows there are, or a few more where they are narrowed down."""
        with self.source.telling_damage():
            return int(self.source.rows.count_rows())

    @cached_property
    def blocks(self) -> str:
        """The name of the table of its blocks, which is made where it is asked for first."""
        statement = blocks_of(self.columns, self.numbers, self.total)
        with self.source.telling_damage():
            self._connection.execute(statement)
        return "blocks"

    def _are_few(self, expressions: Mapping[str, str]) -> bool:
        return self.total * len(expressions) <= AT_ONCE

    def _batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """What a query answers, piece by piece."""
        with self.source.telling_damage():
            yield from pa.RecordBatchReader.from_stream(self._connection.sql(sql))

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        connection = _own_database().cursor()
        connection.register("recorded", self.source.rows)
        shown = [_shown(field.name, field.name in self.numbers) for field in self.source.data.schema]
        connection.execute(f"create temporary view rows as select {', '.join(shown)} from recorded")
        return connection


def _selected(expressions: Mapping[str, str], where: str) -> str:
    return (
        f"select {', '.join(f'{expression} as {quoted(name)}' for name, expression in expressions.items())} from rows"
        f" where {where}"
    )


class _Selection:
    """Quantiles by selection: what lies beyond bounds that a sample gives is counted, and only what lies between is
    held.

    Arrays have the shape (groups, expressions, quantiles).
    Source: Floyd and Rivest, Expected time bounds for selection, 1975.
    """

    def __init__(
        self,
        batches: Callable[[str], Iterator[pa.RecordBatch]],
        expressions: Mapping[str, str],
        at: Sequence[float],
        by: str = "0",
        groups: Sequence[Any] = (0,),
        where: str = "true",
    ) -> None:
        self._batches, self._at, self._groups, self._where = batches, at, pa.array(groups), where
        self._columns = {
            "key": by,
            **{str(number): expression for number, expression in enumerate(expressions.values())},
        }
        self._shape = (len(groups), len(expressions), len(at))

    def values(self, every: int, deviations: float = DEVIATIONS) -> NDArray[np.float64]:
        """The quantiles; one row of `every` is sampled."""
        low, high = self._bounds(every, deviations)
        known, below, lowest, highest = (np.zeros(self._shape, dtype=np.int64) for _ in range(4))
        between: dict[Any, list[NDArray[np.float64]]] = {place: [] for place in np.ndindex(self._shape)}
        for group, columns in self._pieces(self._where):
            for column, values in enumerate(columns):
                known[group, column] += np.count_nonzero(values == values)
                for place in ((group, column, quantile) for quantile in range(len(self._at))):
                    below[place] += np.count_nonzero(values < low[place])
                    lowest[place] += np.count_nonzero(values == low[place])
                    highest[place] += np.count_nonzero(values == high[place])
                    between[place].append(values[(values > low[place]) & (values < high[place])])
        found = np.full(self._shape, np.nan)
        for place, inner in between.items():
            count = int(known[place])
            if count:
                stretch = _Stretch(
                    low[place], high[place], below[place], lowest[place], highest[place], np.sort(np.concatenate(inner))
                )
                value = stretch.at((count - 1) * self._at[place[2]])
                if value is None:
                    return self.values(every, 4 * deviations)
                found[place] = value
        return found

    def _bounds(self, every: int, deviations: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Between which values the quantiles surely lie; infinite where the sample does not tell."""
        low, high = np.full(self._shape, -np.inf), np.full(self._shape, np.inf)
        sample: dict[tuple[int, int], list[NDArray[np.float64]]] = {}
        for group, columns in self._pieces(f"({self._where}) and hash(rank, iteration) % {every} = 0"):
            for column, values in enumerate(columns):
                sample.setdefault((group, column), []).append(values[values == values])
        for (group, column), parts in sample.items():
            values = np.sort(np.concatenate(parts))
            for quantile, at in enumerate(self._at):
                middle, away = (len(values) - 1) * at, 2 + deviations * math.sqrt(len(values) * at * (1 - at))
                first, last = math.floor(middle - away), math.ceil(middle + away)
                if first >= 0:
                    low[group, column, quantile] = values[first]
                if last < len(values):
                    high[group, column, quantile] = values[last]
        return low, high

    def _pieces(self, where: str) -> Iterator[tuple[int, list[NDArray[np.float64]]]]:
        """Some rows of one group after the other: its number, and the columns of numbers."""
        for batch in self._batches(_selected(self._columns, where)):
            group = pc.index_in(batch.column(0), self._groups).to_numpy(zero_copy_only=False)
            columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns[1:]]
            if (group[1:] < group[:-1]).any():
                order = np.argsort(group, kind="stable")
                group, columns = group[order], [column[order] for column in columns]
            edges = [0, *(np.flatnonzero(np.diff(group)) + 1), len(group)]
            for first, last in pairwise(edges):
                if last > first:
                    yield int(group[first]), [column[first:last] for column in columns]


@dataclass(frozen=True)
class _Stretch:
    """The values around a quantile: those between two bounds, in order, and how many there are of the others."""

    low: float
    high: float
    below: int
    """Values below `low`."""
    lowest: int
    """Values equal to `low`."""
    highest: int
    """Values equal to `high`."""
    inner: NDArray[np.float64]

    def at(self, place: float) -> float | None:
        """The value at a place among all, from 0, in a straight line between its neighbours; None where it lies beyond
        the bounds."""
        lower, upper = self._nth(math.floor(place)), self._nth(math.ceil(place))
        if lower is None or upper is None or lower == upper:
            return lower if upper is not None else None
        part = place % 1
        # As NumPy has it, to the last bit.
        return lower + (upper - lower) * part if part < 0.5 else upper - (upper - lower) * (1 - part)

    def _nth(self, place: int) -> float | None:
        first = self.below + self.lowest
        last = first + len(self.inner)
        if place < first:
            return self.low if place >= self.below else None
        if place < last:
            return float(self.inner[place - first])
        return self.high if place < last + self.highest else None


def query(source: Source, sql: str) -> pd.DataFrame:
    """What anybody's query in DuckDB's SQL answers of the table `rows`. It can read nothing else, and writes nothing.

    Raises UsageError for what is not a single `select`, and with its place for what is wrong in it.
    """
    import duckdb

    connection = _database()
    connection.register("rows", source.rows)
    connection.execute("set lock_configuration = true")
    try:
        statements = connection.extract_statements(sql)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise UsageError(
                f"query: {shortened(sql, 200)!r} is no single select, such as: select rank, avg(step_s) from rows group"
                " by rank"
            )
        with source.telling_damage():
            return connection.execute(sql).df()
    except duckdb.Error as error:
        raise UsageError(f"query: {error}") from None
    finally:
        connection.close()


def _database() -> duckdb.DuckDBPyConnection:
    """A database in memory that holds nothing, and reaches no file and no variable of Python."""
    import duckdb

    folder = temporary_folder()
    connection = duckdb.connect(
        config={"memory_limit": MEMORY, "temp_directory": folder, "preserve_insertion_order": "false"}
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
def _own_database() -> duckdb.DuckDBPyConnection:
    """The one for the queries of this package, which each ask it through a cursor."""
    return _database()


def temporary_folder() -> str:
    """A folder for what does not fit into memory; those that processes left which are gone are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SPILLS}*-*"):
        pid = left.name.removeprefix(_SPILLS).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_SPILLS}{os.getpid()}-")


def _shown(name: str, is_number: bool) -> str:
    column = quoted(name)
    return f"case when isnan({column}::double) then null else {column}::double end as {column}" if is_number else column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind))
