"""The columns of the iteration table that are computed from an iteration's timestamps."""

from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from orchestrator.column_names import SPANS
from orchestrator.loop.spans.timestamps import INTERVALS, NUMBERS, TIMESTAMPS

Column = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Function that computes a column from the numbers that `SpanClock.close` returns, shape (rows,
any)."""
_INDICES = {name: index for index, name in enumerate(NUMBERS)}
"""Indices of the numbers that `SpanClock.close` returns."""


def get_wall_time(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the time from the end of the last iteration to the end of this one."""
    return times[:, -1] - times[:, -2]


def _get_number(name: str, times: NDArray[np.float64]) -> NDArray[np.float64]:
    return times[:, _INDICES[name]]


def _make_span_column(span: str) -> Column:
    """Return the column of a span: the sum of its intervals."""
    ends = [_INDICES[name] for name, ended in TIMESTAMPS.items() if ended == span]
    return lambda times: reduce(add, [times[:, end] - times[:, end - 1] for end in ends])


_COLUMNS_OF_INTERVALS = {span: _make_span_column(span) for span in SPANS if span in INTERVALS}
SPAN_COLUMNS: Mapping[str, Column] = {
    **_COLUMNS_OF_INTERVALS,
    "all_reduce_wait_s": lambda times: (
        _COLUMNS_OF_INTERVALS["all_reduce_wait_s"](times) + _get_number("waiting", times)
    ),
    "other_s": lambda times: (
        _COLUMNS_OF_INTERVALS["other_s"](times)
        - _get_number("saving", times)
        - _get_number("waiting", times)
    ),
    "checkpoint_s": partial(_get_number, "saving"),
    "step_s": lambda times: _get_number("on_step", times) - _get_number("last", times),
}
"""Columns of the spans, and of `step_s`, the wall time that they add up to."""
