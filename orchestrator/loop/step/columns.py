"""Columns of the iteration table, computed from the numbers of its rows."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from orchestrator.disk.rows.batches import Layout
from orchestrator.loop.timestamps import Column

COUNTERS = ("iteration", "step", "samples", "batch_size")
"""Counters, the first numbers of every iteration's row."""


def make_columns(values: Sequence[str], times: Mapping[str, Column]) -> Layout:
    """Return a function for each column: of the counters, `values`, then the clock's times."""
    first_time = len(COUNTERS) + len(values)
    return {
        **{name: partial(_get_counter, index) for index, name in enumerate(COUNTERS)},
        **{
            name: itemgetter((slice(None), index))
            for index, name in enumerate(values, start=len(COUNTERS))
        },
        **{name: partial(_get_time, first_time, column) for name, column in times.items()},
    }


def _get_counter(index: int, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    return numbers[:, index].astype(np.int64)


def _get_time(first: int, column: Column, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return column(numbers[:, first:])
