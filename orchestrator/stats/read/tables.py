"""Tables: what every rank recorded, as DataFrames in which each row that counts stands once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hooks.metrics.names import as_run
from orchestrator.errors import UsageError
from orchestrator.records.metadata import Attempt
from orchestrator.stats.aggregate import quantities
from orchestrator.stats.read.reading import as_schema, described, narrow, recorded_tables
from orchestrator.stats.read.recorded_files import recorded_files
from orchestrator.stats.read.row_filter import Condition, check_columns, joint_condition, parse_where
from orchestrator.stats.read.shared_training import shared_schema, shared_tables
from orchestrator.stats.read.superseded import NEEDED, superseded, superseded_costs
from orchestrator.storage import Storage

KEY = ["rank", "phase", "epoch", "iteration"]
FIRST = ["rank", "node", "phase", "epoch", "iteration", "step"]
CATEGORIES = ("phase", "node")
_COST_OF = ["rank", "hook", "event"]
"""What names a row of the hooks' costs."""
_ORDER = ["phase", "epoch", "iteration", "rank", "attempt"]
"""By what rows are put in order, the first first."""
_WIDTHS = {"attempt": 2, "rank": 4, "epoch": 4, "iteration": 4, "step": 4, "batch_size": 4, "phase": 8, "node": 16}
"""Bytes of a row's value, about; of others 8."""

_WHILE_MADE = 4
"""How many times its own size a table takes while it is put in order and handed to pandas."""


def load(
    storage: Storage,
    attempts: Sequence[Attempt],
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> pd.DataFrame:
    """The columns and rows asked for, of the training that counted; the whole table where nothing is asked. See
    `load_table`."""
    return _frame(load_table(storage, attempts, columns, where))


def load_table(
    storage: Storage,
    attempts: Sequence[Attempt],
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> pa.Table:
    """What `load` gives, as Arrow has it.

    `storage` is the run's folder, `attempts` what its attempts say of themselves, `where` a condition as `parse_where`
    takes it. A run that is over, alive or was killed is read the same way: the columns that are needed, of the row
    groups and ranks that can meet the condition. Raises UsageError for a column that no rank recorded, for a condition
    that cannot be read, and for more rows than there is memory for.
    """
    files = recorded_files(storage, "rows")
    own, rows = described(storage, files)
    shared, shared_rows = shared_schema(storage, attempts)
    schema = pa.unify_schemas([own, shared], promote_options="permissive")
    conditions = parse_where(where, schema) if where else []
    if not schema.names:
        return pa.table({name: pa.nulls(0) for name in columns or FIRST})
    asked = (
        [*FIRST, *(name for name in schema.names if name not in FIRST)]
        if columns is None
        else list(dict.fromkeys(columns))
    )
    check_columns(asked, schema.names)
    kept = list(dict.fromkeys([*asked, *KEY]))
    if where is None:
        rows += shared_rows
        _check_room(storage, rows, rows * sum(_WIDTHS.get(name, 8) for name in kept), _WHILE_MADE)
    read = {*kept, *NEEDED, *(name for one in conditions for name in one.columns)}
    # While reading, only what names a row is asked: Parquet knows a row group's smallest and largest number, but not
    # whether it has NaNs beside them.
    names = joint_condition([one for one in conditions if one.columns <= {"phase", "epoch", "iteration"}])
    counting = joint_condition([*conditions, Condition(frozenset(), ~superseded(attempts, own.names))])
    needed = pa.schema([field for field in schema if field.name in read])
    found = [narrow(needed.empty_table()).select(kept)]
    own_tables = recorded_tables(
        storage, files.of(conditions), needed, lambda table: table.filter(counting).select(kept), names
    )
    asked_for = joint_condition(conditions)
    others = (as_schema(table, needed) for table in shared_tables(storage, attempts, needed, names))
    shared_ones = ((table if asked_for is None else table.filter(asked_for)).select(kept) for table in others)
    for table in chain(own_tables, shared_ones):
        found.append(table)
        _check_room(storage, sum(map(len, found)), sum(one.nbytes for one in found), _WHILE_MADE - 1)
    return in_order(pa.concat_tables(found, promote_options="permissive")).select(asked)


def _check_room(storage: Storage, rows: int, size_bytes: int, times: int) -> None:
    """Raises UsageError where a table's size, so many times, is more than there is memory for."""
    free = psutil.virtual_memory().available
    if times * size_bytes > free:
        raise UsageError(
            f"the table of {storage} does not fit in memory: {rows:,} rows take {quantities.size(size_bytes)}, and"
            f" {_WHILE_MADE} times that while the table is made, of {quantities.size(free)} that are free. Ask for some"
            " of it, load_stats(columns, where) or `hookyard stats --columns --where`; let SQL make it smaller,"
            ' run.query("select ..."); or read the Parquet files in it, of which docs/tables.md tells'
        )


def in_order(rows: pa.Table) -> pa.Table:
    """Rows by phase as they are run, then by epoch, iteration and rank; one that was done again before the other."""
    rows = rows.combine_chunks()
    order = np.lexsort([_numbers(rows, name) for name in _ORDER[::-1] if name in rows.column_names])
    return rows.take(order) if (order[1:] < order[:-1]).any() else rows


def _numbers(rows: pa.Table, name: str) -> NDArray[Any]:
    column = rows[name]
    if name == "phase":
        column = pc.index_in(column, value_set=pa.array(as_run(pc.unique(column).to_pylist()), pa.string()))
    return cast(NDArray[Any], column.to_numpy())


def _frame(rows: pa.Table) -> pd.DataFrame:
    """A DataFrame in the smallest types that are safe."""
    categories = [name for name in CATEGORIES if name in rows.column_names]
    return cast(pd.DataFrame, narrow(rows).to_pandas(categories=categories, self_destruct=True))


def load_costs(storage: Storage, attempts: Sequence[Attempt]) -> pd.DataFrame:
    """What each hook cost at each event on each rank: calls and seconds. `storage` is the run's folder."""
    files = recorded_files(storage, "costs")
    return costs_table(recorded_tables(storage, files, described(storage, files)[0]), attempts)


def costs_table(recorded: Iterable[pa.Table], attempts: Sequence[Attempt]) -> pd.DataFrame:
    """The sums of the hooks' ledger, without what was done again; a table after the other, so that no more is in
    memory."""
    counting = ~superseded_costs(attempts)
    sums = [_summed(table.filter(counting)) for table in recorded if len(table)]
    if not sums:
        return pd.DataFrame(columns=[*_COST_OF, "calls", "seconds"])
    total: pd.DataFrame = _summed(pa.concat_tables(sums)).to_pandas()
    return total.sort_values(_COST_OF, ignore_index=True)


def _summed(costs: pa.Table) -> pa.Table:
    sums = costs.group_by(_COST_OF).aggregate([("calls", "sum"), ("seconds", "sum")])
    return sums.select([*_COST_OF, "calls_sum", "seconds_sum"]).rename_columns([*_COST_OF, "calls", "seconds"])
