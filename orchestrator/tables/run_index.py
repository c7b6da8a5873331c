"""The table of all runs in a storage, and its index: a file with a row for each run, so that only
runs that have changed are read.

The index may be deleted at any time. Several processes may write it, and the last one wins.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.disk.lease import is_driver_dead
from orchestrator.disk.listing import explain_no_runs, list_signatures
from orchestrator.disk.metadata import COMPLETE
from orchestrator.disk.process import Process
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import StorageError
from orchestrator.storage import Storage
from orchestrator.storage.remote import join_location
from orchestrator.storage.stored_data import warn_once
from orchestrator.tables.constraints import Constraints
from orchestrator.tables.run_record import read_run_record
from orchestrator.units import CONFIG

INDEX = ".runs.parquet"
_FORMAT = {b"hookyard.runs": b"2"}
"""Metadata of the index. Another number is needed once rows are made differently."""
_TEXT = pa.string()
_NUMBER = pa.float64()
_COUNT = pa.int64()
_TIME = pa.timestamp("ms", "UTC")
_TYPES: Mapping[str, pa.DataType] = {
    "name": _TEXT,
    "kind": _TEXT,
    "status": _TEXT,
    "best": _NUMBER,
    "metric": _TEXT,
    "mode": _TEXT,
    "epoch": _COUNT,
    "checkpoint": _TEXT,
    "diverged": _TEXT,
    "infeasible": _TEXT,
    "tags": pa.list_(_TEXT),
    "notes": _TEXT,
    "sweep": _TEXT,
    "evaluates": _TEXT,
    "started": _TIME,
    "ended": _TIME,
    "reports": _COUNT,
    "attempts": _COUNT,
    "ranks": _COUNT,
    "total_s": _NUMBER,
    "gpu_hours": _NUMBER,
    "train_s": _NUMBER,
    "step_s": _NUMBER,
    "samples_per_s": _NUMBER,
    "data_wait_share": _NUMBER,
    "process_peak_rss_bytes": _NUMBER,
    "peak_allocated_bytes": _NUMBER,
    "peak_reserved_bytes": _NUMBER,
    "gpu_utilization_percent": _NUMBER,
    "gpu_power_w": _NUMBER,
    "stopped": _TEXT,
    "error": _TEXT,
    "commit": _TEXT,
    "dirty": pa.bool_(),
    "path": _TEXT,
    "driver": _TEXT,
    "leader": _TEXT,
    "constraints": _TEXT,
    "signature": _TEXT,
}
"""Columns that each table has; metrics and the configuration follow."""
_INTERNAL = ("driver", "leader", "constraints", "signature")
"""Columns of the index that are not of the table."""
_SHARED = {
    "sweep": ("tags", "commit", "dirty"),
    "leader": ("step_s", "data_wait_share", "samples_per_s"),
}
"""What a trial has from its sweep, and from the trial whose training it shared."""
_MIXED = pa.binary()
"""Type of a column whose values have several types, or more than 64 bits: each value as JSON."""
_LARGE_INTEGERS = (pa.uint64(), pa.decimal128(38))
"""Types of a column of integers that 64 bits with a sign do not hold."""


def load_runs(storage: Storage) -> pa.Table:
    """Return a row for each run, sweep, trial and evaluation in a storage, the oldest first.

    Reads the files of runs that have changed, and writes the index if there are any. Warns of
    damaged runs. Raises UsageError if the storage is not a folder of runs.
    """
    table = RunIndex(storage).read()
    root = str(storage)
    paths = [join_location(root, path) for path in table["path"].to_pylist()]
    table = _set_columns(table, {"path": pa.array(paths, _TEXT)})
    return table.drop_columns([*_INTERNAL])


class RunIndex:
    """The rows of all runs in a storage. Each `read` reads the files of runs that have changed
    since the last one, in this process or before.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._rows: pa.Table | None = None
        """The rows as they are stored."""
        self._shown = pa.table({})
        """The rows with their recorded statuses."""
        self._table = pa.table({"status": []})
        """The rows that were read last."""
        self.version = 0
        """Number of reads that found a change."""

    def read(self) -> pa.Table:
        """Return the rows, with paths within the storage, and the internal columns.

        Warns of damaged runs. Raises UsageError if the storage is not a folder of runs.
        """
        signatures = list_signatures(self._storage)
        if not signatures:
            explain_no_runs(self._storage.location)
        rows = self._rows
        shown = self._shown
        is_current = rows is not None and _get_signatures(rows) == signatures
        if not is_current:
            rows = self._update(signatures)
            shown = _convert(rows)
        statuses = pa.chunked_array([_find_statuses(self._storage, shown)], _TEXT)
        if not is_current or statuses != self._table["status"]:
            self._table = _set_columns(shown, {"status": statuses})
            self.version += 1
        self._rows = rows
        self._shown = shown
        return self._table

    def _update(self, signatures: Mapping[str, str]) -> pa.Table:
        """Return the rows of the runs that exist, and store them if any have changed."""
        stored = _read_index(self._storage) if self._rows is None else self._rows
        known = _get_signatures(stored)
        if known == signatures:
            return stored

        changed = [path for path, signature in signatures.items() if known.get(path) != signature]
        rows = [
            {**row, "signature": signatures[row["path"]]}
            for row in self._storage.map(partial(read_run_record, self._storage), changed)
            if row
        ]
        is_kept = [signatures.get(path) == signature for path, signature in known.items()]
        kept = stored.filter(pa.array(is_kept, pa.bool_()))
        table = _share_with_trials(_concat(kept, _make_table(rows)))
        table = table.sort_by([("started", "ascending"), ("path", "ascending")])
        # A storage may be read-only.
        with suppress(StorageError), self._storage.create(INDEX) as file:
            pq.write_table(table.replace_schema_metadata(_FORMAT), file, compression="zstd")
        return table


def _get_signatures(rows: pa.Table) -> dict[str, str]:
    """Return the signature of each run, by its path."""
    return dict(zip(rows["path"].to_pylist(), rows["signature"].to_pylist(), strict=True))


def _convert(rows: pa.Table) -> pa.Table:
    """Return stored rows as users see them, with a warning of damaged runs."""
    is_bad = pc.is_in(rows["status"], pa.array(["damaged", "newer"]))
    for error in rows.filter(is_bad)["error"]:
        warn_once(error.as_py())
    columns = {
        name: _unify(rows[name]) if rows[name].type == _MIXED else rows[name]
        for name in rows.column_names
    }
    return _drop_infeasible(_extend_hours_of_leaders(pa.table(columns)))


# The index


def _read_index(storage: Storage) -> pa.Table:
    """Return the stored rows; none if the index is missing, damaged or of another format."""
    with suppress(FileNotFoundError, StorageError, pa.ArrowException, OSError, KeyError):
        table = pq.read_table(BytesIO(storage.read(INDEX)))
        has_columns = table.select([*_TYPES]).schema.equals(pa.schema(_TYPES.items()))
        if has_columns and _FORMAT.items() <= (table.schema.metadata or {}).items():
            return table
    return _make_table([])


def _share_with_trials(table: pa.Table) -> pa.Table:
    """Fill the columns that trials take from their sweeps and leaders."""
    own = pa.array(range(len(table)), pa.int32())
    for source, names in _SHARED.items():
        positions = pc.coalesce(pc.index_in(table[source], value_set=table["path"]), own)
        table = _set_columns(table, {name: table[name].take(positions) for name in names})
    return table


def _extend_hours_of_leaders(table: pa.Table) -> pa.Table:
    """Return the table with the GPU hours of each leader until its last follower has ended, because
    its training goes on for them."""
    followers = table.filter(pc.is_valid(table["leader"]))
    longest = followers.group_by("leader").aggregate([("total_s", "max")])
    positions = pc.index_in(table["path"], value_set=longest["leader"])
    group_s = longest["total_s_max"].take(positions)
    goes_on = pc.and_(pc.greater(group_s, table["total_s"]), pc.greater(table["total_s"], 0))
    extended = pc.multiply(table["gpu_hours"], pc.divide(group_s, table["total_s"]))
    hours = pc.if_else(pc.fill_null(goes_on, False), extended, table["gpu_hours"])
    return _set_columns(table, {"gpu_hours": hours})


def _drop_infeasible(table: pa.Table) -> pa.Table:
    """Return the table with what ended trials break of the constraints of their sweeps, and without
    the best values of those trials."""
    broken: list[str | None] = [None] * len(table)
    is_limited = pc.is_valid(table["constraints"])
    for sweep in table.filter(is_limited).select(["path", "constraints"]).to_pylist():
        limits = json.loads(sweep["constraints"])
        for position, cells in _find_measurements(table, sweep["path"], limits):
            broken[position] = Constraints(limits).describe_broken(cells)
    infeasible = pa.array(broken, _TEXT)
    best = pc.if_else(pc.is_valid(infeasible), None, table["best"])
    return _set_columns(table, {"infeasible": infeasible, "best": best})


def _find_measurements(
    table: pa.Table, sweep: str, names: Iterable[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the position of each ended trial of a sweep, and its values in the columns that the
    table has."""
    measured = table.select([name for name in names if name in table.column_names])
    is_complete = pc.is_in(table["status"], pa.array(COMPLETE))
    is_trial = pc.and_(is_complete, pc.equal(table["sweep"], sweep))
    for position in pc.indices_nonzero(is_trial).to_pylist():
        yield position, {name: measured[name][position].as_py() for name in measured.column_names}


def _find_statuses(storage: Storage, table: pa.Table) -> list[str]:
    """Return the status of each run; a running one is lost if its driver is dead."""
    statuses: list[str] = table["status"].to_pylist()
    positions = pc.indices_nonzero(pc.equal(table["status"], "running"))
    rows = table.select(["path", "kind", "driver"]).take(positions).to_pylist()
    for position, row in zip(positions.to_pylist(), rows, strict=True):
        driver = Process(**json.loads(row["driver"])) if row["driver"] else None
        folder = RunFolder(storage, row["path"])
        if is_driver_dead(driver, folder.get_driven_folder(is_trial=row["kind"] == "trial")):
            statuses[position] = "lost"
    return statuses


# Columns


def _make_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = {}
    for name in dict.fromkeys(chain(_TYPES, *rows)):
        values = [row.get(name) for row in rows]
        kind = _TYPES.get(name)
        columns[name] = pa.array(values, kind) if kind else _make_column(values)
    return pa.table(columns)


def _make_column(values: Sequence[Any]) -> pa.Array:
    """Return values of one type as a column, and those of several types as JSON."""
    if len({type(value) for value in values if value is not None}) < 2:
        with suppress(pa.ArrowException, OverflowError):  # an integer of more than 64 bits
            return pa.array(values)
    texts = [None if value is None else json.dumps(value).encode() for value in values]
    return pa.array(texts, _MIXED)


def _concat(first: pa.Table, second: pa.Table) -> pa.Table:
    """Return the rows of two tables. A column has the type that it would have if all rows were made
    together, and an empty one is left out."""
    columns = {}
    for name in _sort_names({*first.column_names, *second.column_names}):
        parts = []
        for table in (first, second):
            is_known = name in table.column_names
            parts.append(table[name] if is_known else pa.chunked_array([pa.nulls(len(table))]))
        column = _concat_columns(parts)
        if name in _TYPES or column.null_count < len(column):
            columns[name] = column
    return pa.table(columns)


def _concat_columns(parts: Sequence[pa.ChunkedArray]) -> pa.Array:
    kinds = {part.type for part in parts if part.null_count < len(part)}
    if kinds == {_MIXED} or len(kinds) > 1:
        return _make_column([*chain.from_iterable(map(_list_values, parts))])
    kind = next(iter(kinds), parts[0].type)
    chunks = chain.from_iterable(part.chunks for part in parts)
    return pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)


def _list_values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if column.type != _MIXED:
        return values
    return [None if value is None else json.loads(value) for value in values]


def _unify(column: pa.ChunkedArray) -> pa.Array:
    """Return the values of several types as numbers if all are, otherwise as text."""
    values = _list_values(column)
    known = [value for value in values if value is not None]
    if all(type(value) is int for value in known):
        for kind in _LARGE_INTEGERS:
            with suppress(pa.ArrowException, OverflowError):
                return pa.array(values, kind)
    if all(type(value) in (int, float) for value in known):
        return pa.array([None if value is None else float(value) for value in values], _NUMBER)
    return pa.array(
        [
            value if value is None or isinstance(value, str) else json.dumps(value)
            for value in values
        ],
        _TEXT,
    )


def _sort_names(names: set[str]) -> list[str]:
    """Return the columns of each table, metrics, and the configuration."""
    fixed = [*_TYPES]
    others = sorted(names - {*fixed}, key=lambda name: (name.startswith(CONFIG), name))
    return [*fixed, *others]


def _set_columns(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table
