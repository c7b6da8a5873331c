"""Tables: what every rank recorded, as DataFrames in which each row that counts stands once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orchestrator.checkpoint.position import Stage
from orchestrator.errors import DamagedFile
from orchestrator.records.metadata import Attempt
from orchestrator.stats.checksums import check_footer, schema_in, whole_batches, write_parquet
from orchestrator.stats.row_filter import Condition, check_columns, joint_condition, parse_where
from orchestrator.stats.usage import with_usage
from orchestrator.storage import Storage

KEY = ["rank", "phase", "epoch", "iteration"]
FIRST = ["rank", "node", "phase", "epoch", "iteration", "step"]
PHASES = ["train", "val", "test"]
CATEGORIES = ("phase", "node")
SMALL = {"rank": pa.int32(), "epoch": pa.int32(), "iteration": pa.int32(), "step": pa.int32(), "batch_size": pa.int32(), "attempt": pa.int16()}
"""The integers of the columns that count; others are 64 bits wide."""
COMPACTED = {"rows": "stats.parquet", "costs": "hooks.parquet"}
"""Where a finished run keeps each table."""

ROW_GROUP = 2**17
"""Rows of the compacted file that are read together; rows of one epoch are neighbours."""


def load(
    storage: Storage,
    attempts: Sequence[Attempt],
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> pd.DataFrame:
    """The columns and rows asked for, of the training that counted; the whole table where nothing is asked.

    `storage` is the run's folder, `attempts` what its attempts say of themselves, `where` a condition as `parse_where`
    takes it. A run that is over, alive or was killed is read the same way: of the compacted file only the columns and
    row groups that are needed, of the ranks' files only those of ranks that can meet the condition. Raises UsageError
    for a column that no rank recorded and for a condition that cannot be read.
    """
    if columns is None and where is None:
        return stats_table(read_recorded(storage, "rows"), attempts)
    schema = recorded_schema(storage)
    conditions = parse_where(where, schema) if where else []
    if not schema.names:
        return pd.DataFrame(columns=list(columns or FIRST))
    asked = [*FIRST, *(name for name in schema.names if name not in FIRST)] if columns is None else list(dict.fromkeys(columns))
    check_columns(asked, schema.names)
    needed = {*asked, *KEY, "attempt", "samples", *(name for one in conditions for name in one.columns)}
    read = pa.schema([field for field in schema if field.name in needed])
    # While reading, only what names a row is asked: Parquet knows a row group's smallest and largest number, but not
    # whether it has NaNs beside them.
    names = [one for one in conditions if one.columns <= set(KEY)]
    recorded = read_recorded(storage, "rows", read, names)
    return _frame(current_rows(recorded, attempts, conditions=conditions).select(asked))


def recorded_schema(storage: Storage) -> pa.Schema:
    """Every column of rows that any rank of a run recorded, and what it holds; empty where nothing is recorded."""
    schemas = [pa.schema([])]
    if storage.exists(COMPACTED["rows"]):
        with _joined_file(storage, "rows") as file:
            schemas.append(pq.read_schema(file).remove_metadata())
    for file in _files(storage, "rows"):
        with storage.open(file) as stream:
            begun = schema_in(stream, str(storage / file))
            schemas += [begun[0]] if begun else []
    schema = pa.unify_schemas(list(dict.fromkeys(schemas)), promote_options="permissive")
    return pa.schema([field for field in schema if field.name != "superseded"])


def read_batches(data: bytes, columns: Collection[str] | None = None, place: str = "a stream") -> list[pa.RecordBatch]:
    """The whole batches of an Arrow stream, named by its place; what a kill cut short at its end is left out, and what is
    damaged, which is said."""
    stream = pa.BufferReader(data)
    begun = schema_in(stream, place)
    if begun is None:
        return []
    batches: list[pa.RecordBatch] = []
    with suppress(pa.ArrowInvalid, EOFError, OSError):
        # Taken one by one: those before the cut are kept.
        for batch in whole_batches(stream, *begun, place):
            batches.append(batch if columns is None else batch.select([name for name in batch.schema.names if name in columns]))
    return batches


def read_recorded(
    storage: Storage,
    table: str,
    schema: pa.Schema | None = None,
    conditions: Sequence[Condition] = (),
) -> pa.Table:
    """Every row recorded for a run, from its compacted file and its ranks' files; no column where nothing is recorded.

    `storage` is the run's folder, `table` is `rows` or `costs`. A row that came twice is here twice. With a schema, its
    columns alone; with conditions, which need one, fewer of the rows that do not meet them.
    """
    tables = [(pa.schema([]) if schema is None else schema).empty_table()]
    if storage.exists(COMPACTED[table]):
        with _joined_file(storage, table) as file:
            names = None if schema is None else schema.names
            tables.append(pq.read_table(file, columns=names, filters=joint_condition(conditions), schema=schema, page_checksum_verification=True).replace_schema_metadata())
    columns = None if schema is None else set(schema.names)
    batches = [read_batches(storage.read(file), columns, str(storage / file)) for file in _files(storage, table, conditions)]
    tables += [pa.Table.from_batches(own) for own in batches if own]
    return pa.concat_tables(tables, promote_options="permissive")


@contextmanager
def _joined_file(storage: Storage, table: str) -> Iterator[Any]:
    """The compacted file of a table; raises DamagedFile where it cannot be read, or a checksum of it does not hold."""
    name = COMPACTED[table]
    try:
        with storage.open(name) as file:
            check_footer(file)
            yield file
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        advice = "Put back a copy of it; without one what its ranks recorded is lost. Reports and checkpoints do not depend on it"
        raise DamagedFile(str(storage / name), str(error), advice) from error


def _files(storage: Storage, table: str, conditions: Sequence[Condition] = ()) -> list[str]:
    """The files of the ranks that can meet the conditions."""
    folders = [
        (attempt, rank)
        for attempt in storage.names("stats")
        if attempt.startswith("attempt=")
        for rank in storage.names(f"stats/{attempt}")
        if rank.startswith("rank=")
    ]
    ranks = pa.table({"rank": sorted({int(rank.removeprefix("rank=")) for _, rank in folders})})
    rank_conditions = [one for one in conditions if one.columns == {"rank"}]
    wanted = set((ranks.filter(joint_condition(rank_conditions)) if rank_conditions else ranks)["rank"].to_pylist())
    return [
        f"stats/{attempt}/{rank}/{file}"
        for attempt, rank in folders
        if int(rank.removeprefix("rank=")) in wanted
        for file in storage.names(f"stats/{attempt}/{rank}")
        if file.startswith(f"{table}-") and file.endswith(".arrow")
    ]


def superseded(rows: Mapping[str, NDArray[Any]], attempts: Sequence[Attempt]) -> NDArray[np.bool_]:
    """Which rows were done again by a later attempt, which began at a checkpoint before them.

    A training row is superseded where its iteration lies past a later attempt's start; an evaluation row where the
    training samples seen by then do, or where the checkpoint was made after as many and before the validation. Steps
    would not do: micro-batches share one, and so does an iteration whose step was left out.
    """
    gone = np.zeros(len(rows["attempt"]), dtype=bool)
    training, test = rows["phase"] == PHASES.index("train"), rows["phase"] == PHASES.index("test")
    for attempt in attempts:
        start, earlier = attempt.position, rows["attempt"] < attempt.number
        if not earlier.any():
            continue
        past = training & (rows["iteration"] > start.iteration)
        past |= ~training & (rows["samples"] > start.samples)
        if start.stage <= Stage.TRAINED:
            past |= ~training & (rows["samples"] == start.samples)
        gone |= earlier & (past | test)
    return gone


def current_rows(
    recorded: pa.Table,
    attempts: Sequence[Attempt],
    *,
    conditions: Sequence[Condition] = (),
    keep_superseded: bool = False,
) -> pa.Table:
    """The rows that count and meet the conditions, each once: by phase as they are run, then by epoch, iteration and rank.

    With `keep_superseded` also those that were done again, in order of their attempts and marked.
    """
    recorded = recorded.combine_chunks()
    if "superseded" in recorded.column_names:
        recorded = recorded.drop_columns("superseded")
    rows = {name: _numbers(recorded[name]) for name in ("rank", "epoch", "iteration", "attempt", "samples") if name in recorded.column_names}
    rows["phase"] = _phases(recorded["phase"])
    gone = superseded(rows, attempts)
    order = np.lexsort([rows[name] for name in ("attempt", "rank", "iteration", "epoch", "phase")])
    if not keep_superseded and gone.any():
        order = order[~gone[order]]
    alike = (*KEY, "attempt") if keep_superseded else KEY
    order = order[_last_of_alike([rows[name][order] for name in alike])]
    if conditions:
        order = order[_meets(recorded, conditions)[order]]
    if len(order) != recorded.num_rows or (order[1:] < order[:-1]).any():
        recorded = recorded.take(order)
    return recorded.append_column("superseded", pa.array(gone[order])) if keep_superseded else recorded


def _meets(rows: pa.Table, conditions: Sequence[Condition]) -> NDArray[np.bool_]:
    """Which rows meet the conditions."""
    columns = rows.select(sorted(frozenset().union(*(one.columns for one in conditions))))
    met = columns.append_column("", pa.array(np.arange(len(rows)))).filter(joint_condition(conditions))
    meets = np.zeros(len(rows), dtype=bool)
    meets[_numbers(met[""])] = True
    return meets


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    return cast(NDArray[Any], column.to_numpy())


def _phases(column: pa.ChunkedArray) -> NDArray[Any]:
    """The place of each row's phase in the order in which phases are run."""
    return _numbers(pc.fill_null(pc.index_in(column, value_set=pa.array(PHASES)), len(PHASES)))


def _last_of_alike(columns: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Which rows differ in any of the columns from the one after them; the last always does."""
    changes: NDArray[np.bool_] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.append(changes, np.ones(min(1, len(columns[0])), dtype=bool))


def stats_table(recorded: pa.Table, attempts: Sequence[Attempt], *, keep_superseded: bool = False) -> pd.DataFrame:
    """One row per rank, phase, epoch and iteration of the training that counted."""
    if not recorded.column_names:
        return pd.DataFrame(columns=FIRST)
    rows = current_rows(recorded, attempts, keep_superseded=keep_superseded)
    return _frame(rows.select(FIRST + [name for name in rows.column_names if name not in FIRST]))


def _frame(rows: pa.Table) -> pd.DataFrame:
    """A DataFrame in the smallest types that are safe."""
    categories = [name for name in CATEGORIES if name in rows.column_names]
    return cast(pd.DataFrame, _narrow(rows).to_pandas(categories=categories, self_destruct=True))


def _narrow(rows: pa.Table) -> pa.Table:
    """Counters as the integers of SMALL, where they fit."""
    for index, name in enumerate(rows.column_names):
        if name in SMALL and pa.types.is_int64(rows[name].type):
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(index, name, rows[name].cast(SMALL[name]))
    return rows


def costs_table(recorded: pa.Table, attempts: Sequence[Attempt]) -> pd.DataFrame:
    """What each hook cost at each event on each rank: calls and seconds."""
    columns = ["rank", "hook", "event", "calls", "seconds"]
    if not recorded.column_names:
        return pd.DataFrame(columns=columns)
    rows: pd.DataFrame = recorded.to_pandas().drop_duplicates()
    for attempt in attempts:
        rows = rows[~((rows["attempt"] < attempt.number) & (rows["iteration"] > attempt.position.iteration))]
    return rows.groupby(["rank", "hook", "event"], as_index=False)[["calls", "seconds"]].sum()[columns]


def compact(storage: Storage, attempts: Sequence[Attempt]) -> None:
    """Joins what the ranks wrote into `stats.parquet` and `hooks.parquet`, then removes the ranks' files. Driver.

    Superseded rows stay, marked. A kill in between leaves rows in both places; reading drops the doubles.
    """
    for table in ("rows", "costs"):
        recorded = read_recorded(storage, table)
        if not recorded.column_names:
            continue
        if table == "rows":
            recorded = with_usage(_narrow(current_rows(recorded, attempts, keep_superseded=True)), attempts)
        files = _files(storage, table)
        with storage.create(COMPACTED[table]) as file:
            write_parquet(recorded, file, ROW_GROUP)
        for name in files:
            storage.delete(name)
