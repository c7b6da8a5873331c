"""The rows of a run as a dataset of pyarrow's, of which no more is read than is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.dataset as ds

from orchestrator.records.metadata import Attempt
from orchestrator.stats.tables import load_table
from orchestrator.storage import Storage


def recorded_rows(storage: Storage, attempts: Sequence[Attempt], where: str | None = None) -> ds.Dataset:
    """The rows that count and meet a condition, each once; `storage` is the run's folder.

    `where` is as `parse_where` takes it. Raises UsageError for a condition that cannot be read.
    """
    return ds.dataset(load_table(storage, attempts, None, where))
