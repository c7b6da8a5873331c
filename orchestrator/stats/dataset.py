"""The rows of a run as a dataset of pyarrow's, of which no more is read than is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.dataset as ds

from orchestrator.records.metadata import Attempt
from orchestrator.stats.row_filter import parse_where
from orchestrator.stats.tables import FIRST, current_rows, read_recorded, recorded_schema
from orchestrator.storage import Storage


def recorded_rows(storage: Storage, attempts: Sequence[Attempt], where: str | None = None) -> ds.Dataset:
    """The rows that count and meet a condition, each once; `storage` is the run's folder.

    `where` is as `parse_where` takes it. Raises UsageError for a condition that cannot be read.
    """
    schema = recorded_schema(storage)
    if not schema.names:
        return ds.dataset(pa.table({name: pa.nulls(0) for name in FIRST}))
    conditions = parse_where(where, schema) if where else []
    return ds.dataset(current_rows(read_recorded(storage, "rows"), attempts, conditions=conditions))
