"""The table of all runs in a storage, and its index: a file with a row for each run, so that only
runs that have changed are read.

The index may be deleted at any time. Several processes may write it, and the last one wins.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from io import BytesIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.disk.lease import is_driver_dead
from orchestrator.disk.listing import check_runs_folder
from orchestrator.disk.process import Process
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import get_driven_folder
from orchestrator.disk.signatures import list_signatures
from orchestrator.errors import StorageError
from orchestrator.storage import Storage
from orchestrator.storage.location import join_location
from orchestrator.storage.omissions import warn_once
from orchestrator.tables.infeasible_trials import drop_infeasible
from orchestrator.tables.mixed_columns import unify_mixed_columns
from orchestrator.tables.related_runs import extend_hours_of_leaders, share_with_trials
from orchestrator.tables.run_columns import (
    COLUMN_TYPES,
    INTERNAL_COLUMNS,
    TEXT,
    concat_tables,
    make_table,
    set_columns,
)
from orchestrator.tables.run_record import read_run_record

INDEX = ".runs.parquet"
_FORMAT = {b"hookyard.runs": b"3"}
"""Metadata of the index. Another number is needed once rows are made differently."""


def load_runs(storage: Storage) -> pa.Table:
    """Return a row for each run, sweep, trial and evaluation in a storage, the oldest first.

    Reads the files of runs that have changed, and writes the index if there are any. Warns of
    damaged runs. Raises UsageError if the storage is not a folder of runs.
    """
    table = RunIndex(storage).read()
    root = str(storage)
    paths = [join_location(root, path) for path in table["path"].to_pylist()]
    table = set_columns(table, {"path": pa.array(paths, TEXT)})
    return table.drop_columns([*INTERNAL_COLUMNS])


class RunIndex:
    """The rows of all runs in a storage. Each `read` reads the files of runs that have changed
    since the last one, in this process or before.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._stored: pa.Table | None = None
        """The rows as they are in the index; None before the first read."""
        self._table = pa.table({})
        """The rows as the last read returned them."""
        self._not_runs: dict[str, str] = {}
        """Signatures of folders that held no run when they were read, by path."""
        self.version = 0
        """Number of reads that found a change."""

    def read(self) -> pa.Table:
        """Return the rows, with paths within the storage, and the internal columns.

        Warns of damaged runs. Raises UsageError if the storage is not a folder of runs.
        """
        signatures = list_signatures(self._storage)
        if not signatures:
            check_runs_folder(self._storage)
        signatures = {
            path: signature
            for path, signature in signatures.items()
            if self._not_runs.get(path) != signature
        }

        stored = self._stored
        table = self._table
        if stored is None or _get_signatures(stored) != signatures:
            stored = self._update(signatures)
            table = _convert(stored)
        statuses = pa.chunked_array([_find_statuses(self._storage, stored)], TEXT)
        if table is not self._table or statuses != table["status"]:
            table = set_columns(table, {"status": statuses})
            self.version += 1

        # Only now, so that an error above does not hide the change from the next read.
        self._stored = stored
        self._table = table
        return table

    def _update(self, signatures: Mapping[str, str]) -> pa.Table:
        """Return the rows of the runs that exist, and store them if any have changed."""
        stored = self._stored
        if stored is None:
            stored = _read_index(self._storage)
        known = _get_signatures(stored)
        if known == signatures:
            return stored

        changed = [path for path, signature in signatures.items() if known.get(path) != signature]
        records = self._storage.map(partial(read_run_record, self._storage), changed)
        rows = []
        for path, record in zip(changed, records, strict=True):
            if record is None:
                self._not_runs[path] = signatures[path]
            else:
                rows.append({**record, "signature": signatures[path]})
        is_kept = [signatures.get(path) == signature for path, signature in known.items()]
        if not rows and all(is_kept):
            return stored
        kept = stored.filter(pa.array(is_kept, pa.bool_()))
        table = concat_tables(kept, make_table(rows))
        table = table.sort_by([("started", "ascending"), ("path", "ascending")])
        # A storage may be read-only.
        with suppress(StorageError), self._storage.create(INDEX) as file:
            pq.write_table(table.replace_schema_metadata(_FORMAT), file, compression="zstd")
        return table


def _get_signatures(rows: pa.Table) -> dict[str, str]:
    """Return the signature of each run, by its path."""
    return dict(zip(rows["path"].to_pylist(), rows["signature"].to_pylist(), strict=True))


def _read_index(storage: Storage) -> pa.Table:
    """Return the stored rows; none if the index is missing, damaged or of another format."""
    with suppress(FileNotFoundError, StorageError, pa.ArrowException, OSError, KeyError):
        table = pq.read_table(BytesIO(storage.read(INDEX)))
        has_columns = table.select([*COLUMN_TYPES]).schema.equals(pa.schema(COLUMN_TYPES.items()))
        if has_columns and _FORMAT.items() <= (table.schema.metadata or {}).items():
            return table
    return make_table([])


def _convert(rows: pa.Table) -> pa.Table:
    """Return stored rows as users see them, with a warning of damaged runs."""
    is_bad = pc.is_in(rows["status"], pa.array(["damaged", "newer"]))
    for error in rows.filter(is_bad)["error"]:
        warn_once(error.as_py())
    table = share_with_trials(unify_mixed_columns(rows))
    return drop_infeasible(extend_hours_of_leaders(table))


def _find_statuses(storage: Storage, rows: pa.Table) -> list[str]:
    """Return the status of each run; a running one is lost if its driver is dead."""
    statuses: list[str] = rows["status"].to_pylist()
    positions = pc.indices_nonzero(pc.equal(rows["status"], "running"))
    running = rows.select(["path", "kind", "driver"]).take(positions).to_pylist()
    for position, row in zip(positions.to_pylist(), running, strict=True):
        driver = Process(**json.loads(row["driver"])) if row["driver"] else None
        folder = RunFolder(storage, row["path"])
        if is_driver_dead(driver, get_driven_folder(folder, is_trial=row["kind"] == "trial")):
            statuses[position] = "lost"
    return statuses
