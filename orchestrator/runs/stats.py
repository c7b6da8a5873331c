"""The rows of a run: loading them, summaries and queries. Does not need Ray.

The first reader of a run that has ended finishes the compaction of its rows if that was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pandas as pd

from orchestrator.disk.rows.compaction import finish_compaction
from orchestrator.disk.rows.recorded_files import warn_lost_rows
from orchestrator.disk.rows.valid_rows import list_columns, open_valid_rows
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import COMPLETE
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.tables import summaries
from orchestrator.tables.conditions import check_columns, restrict_to_training
from orchestrator.tables.frames import load
from orchestrator.tables.hook_costs import load_costs, summarize_hooks
from orchestrator.tables.query import Rows
from orchestrator.tables.user_query import query

GROUPS = ("rank", "node", "phase", "span", "hook")
"""What `summarize` can group by."""


def load_rows(
    folder: RunFolder, columns: Sequence[str] | None = None, where: str | None = None
) -> pd.DataFrame:
    """Return columns of the rows that match a condition."""
    _prepare(folder)
    return load(folder.storage, folder.read_attempts(), columns, where)


def open_rows(folder: RunFolder, where: str | None = None) -> Rows:
    """Return the rows that match a condition, which are read when they are queried."""
    _prepare(folder)
    return Rows(open_valid_rows(folder.storage, folder.read_attempts()), where)


def query_rows(folder: RunFolder, sql: str) -> pd.DataFrame:
    """Return the result of a user's query of the table `rows`."""
    _prepare(folder)
    return query(open_valid_rows(folder.storage, folder.read_attempts()), sql)


def list_row_columns(folder: RunFolder) -> Sequence[str]:
    """Return the names of all columns of the rows."""
    _prepare(folder)
    return list_columns(folder.storage, folder.read_attempts())


def load_hook_costs(folder: RunFolder) -> pd.DataFrame:
    """Return the cost of each hook at each event on each rank, with the hook's `every`."""
    _prepare(folder)
    costs = load_costs(folder.storage, folder.read_attempts())
    return costs.assign(every=costs["hook"].map(_read_intervals(folder)).astype(object))


def _read_intervals(folder: RunFolder) -> dict[str, Any]:
    """Return the field `every` of each hook; nothing if the experiment is damaged."""
    entries: Mapping[str, Any] = {}
    with suppress(DamagedFile):
        entries = folder.read_experiment().get("hooks") or {}
    return {
        name: entry.get("every") for name, entry in entries.items() if isinstance(entry, Mapping)
    }


def summarize(
    folder: RunFolder, by: str | None, columns: Sequence[str] | None, where: str | None
) -> pd.DataFrame:
    """Return statistics of columns, or a table by one of the `GROUPS`."""
    if by == "hook":
        if columns is not None or where is not None:
            raise UsageError(
                "--by hook (by='hook') cannot be combined with --where or --columns: the costs of hooks are not"
                " recorded by row"
            )
        seconds = summaries.sum_seconds(open_rows(folder))
        return summarize_hooks(load_hook_costs(folder), seconds)

    if by is not None and by not in GROUPS:
        hint = "; --by trial is for sweeps" if by == "trial" else ""
        raise UsageError(f"by must be 'rank', 'node', 'phase', 'span' or 'hook', got {by!r}{hint}")
    rows = open_rows(folder, where if by == "phase" else restrict_phase(folder, where))
    check_columns(columns or (), rows.columns)
    if by is None:
        return summaries.summarize(rows, columns)
    if by == "span":
        return summaries.summarize_spans(rows, columns)
    return summaries.summarize_by(by, rows, columns)


def restrict_phase(folder: RunFolder, where: str | None) -> str | None:
    """Restrict a condition that does not mention the phase to rows of `train`, except in an
    evaluation."""
    return where if folder.read_metadata().evaluates else restrict_to_training(where)


def _prepare(folder: RunFolder) -> None:
    """Finish the compaction of the rows if it was interrupted, and warn of lost rows."""
    finish_compaction(folder)
    if folder.read_metadata().status in COMPLETE and not folder.storage.exists("stats.parquet"):
        warn_lost_rows(folder.storage, folder.read_attempts())
