"""The columns of the table of all runs, and tables that have them."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from orchestrator.column_names import CONFIG
from orchestrator.tables.mixed_columns import concat_columns, make_column

TEXT = pa.string()
_NUMBER = pa.float64()
_COUNT = pa.int64()
_TIME = pa.timestamp("ms", "UTC")
COLUMN_TYPES: Mapping[str, pa.DataType] = {
    "name": TEXT,
    "kind": TEXT,
    "status": TEXT,
    "best": _NUMBER,
    "metric": TEXT,
    "mode": TEXT,
    "epoch": _COUNT,
    "checkpoint": TEXT,
    "diverged": TEXT,
    "infeasible": TEXT,
    "tags": pa.list_(TEXT),
    "notes": TEXT,
    "sweep": TEXT,
    "evaluates": TEXT,
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
    "stopped": TEXT,
    "error": TEXT,
    "commit": TEXT,
    "dirty": pa.bool_(),
    "path": TEXT,
    "driver": TEXT,
    "leader": TEXT,
    "constraints": TEXT,
    "signature": TEXT,
}
"""Columns that each table has; metrics and the configuration follow."""
INTERNAL_COLUMNS = ("driver", "leader", "constraints", "signature")
"""Columns of the index that are not of the table."""


def make_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table. A row may lack columns."""
    columns = {}
    for name in dict.fromkeys(chain(COLUMN_TYPES, *rows)):
        values = [row.get(name) for row in rows]
        kind = COLUMN_TYPES.get(name)
        columns[name] = pa.array(values, kind) if kind else make_column(values)
    return pa.table(columns)


def concat_tables(first: pa.Table, second: pa.Table) -> pa.Table:
    """Return the rows of two tables. A column has the type that it would have if all rows were made
    together, and an empty one is left out."""
    columns = {}
    for name in _sort_names({*first.column_names, *second.column_names}):
        parts = []
        for table in (first, second):
            is_known = name in table.column_names
            parts.append(table[name] if is_known else pa.chunked_array([pa.nulls(len(table))]))
        column = concat_columns(parts)
        if name in COLUMN_TYPES or column.null_count < len(column):
            columns[name] = column
    return pa.table(columns)


def set_columns(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return the table with other values in some of its columns."""
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def _sort_names(names: set[str]) -> list[str]:
    """Return the columns of each table, metrics, and the configuration."""
    fixed = [*COLUMN_TYPES]
    others = sorted(names - {*fixed}, key=lambda name: (name.startswith(CONFIG), name))
    return [*fixed, *others]
