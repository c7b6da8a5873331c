"""The numbers of a row, and the columns of the iteration table that are computed from them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.disk.rows.batches import Layout
from orchestrator.loop.spans.columns import Column

_COUNTERS = ("iteration", "step", "samples", "batch_size")


def make_numbers(
    iteration: int,
    step: int,
    samples: int,
    batch_size: int,
    values: Iterable[Any],
    times: Iterable[float],
) -> tuple[Any, ...]:
    """Return the numbers of a row, in the order of `make_columns`.

    A named tuple of the counters would double the time that this takes.
    """
    return (iteration, step, samples, batch_size, *values, *times)


def make_columns(values: Sequence[str], times: Mapping[str, Column]) -> Layout:
    """Return a function for each column that computes it from the numbers of `make_numbers`: the
    counters, `values`, then the columns of the clock's times."""
    first_time = len(_COUNTERS) + len(values)
    return {
        **{name: partial(_get_counter, index) for index, name in enumerate(_COUNTERS)},
        **{
            name: itemgetter((slice(None), index))
            for index, name in enumerate(values, start=len(_COUNTERS))
        },
        **{name: partial(_get_time, first_time, column) for name, column in times.items()},
    }


def _get_counter(index: int, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    return numbers[:, index].astype(np.int64)


def _get_time(first: int, column: Column, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return column(numbers[:, first:])
