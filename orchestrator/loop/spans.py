"""The spans of an iteration: the timestamps that bound them, and the columns that they become."""

from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.units import SPANS

FETCH_TIMES = {
    "begin": "other_s",  # since the previous iteration ended, without saving and waiting
    "on_iteration_start": "hooks_s",
    "fetched": "data_wait_s",
    "moved": "to_device_s",
    "on_batch": "hooks_s",
}
"""Timestamps of fetching a batch, each with the span of the interval before it."""
FORWARD_TIMES = {
    "forward": "forward_s",
    "on_forward": "hooks_s",
    "loss": "loss_s",
    "on_loss": "hooks_s",
}
"""Timestamps of the forward pass and the loss."""
BACKWARD_TIMES = {
    "local_backward": "backward_s",
    "backward": "all_reduce_wait_s",
    "on_backward": "hooks_s",
}
"""Timestamps of the backward pass."""
UPDATE_TIMES = {
    "unscaled": "optimizer_s",
    "on_gradients": "hooks_s",
    "stepped": "optimizer_s",
    "on_update": "hooks_s",
}
"""Timestamps of the optimizer's step."""
TIMESTAMPS = {
    **FETCH_TIMES,
    **FORWARD_TIMES,
    **BACKWARD_TIMES,
    **UPDATE_TIMES,
    "counted": "optimizer_s",  # clearing the gradients, counting
    "on_step": "hooks_s",
}
"""All timestamps of an iteration in order, each with the span of the interval before it."""
Timestamps = tuple[Any, ...]
"""Timestamps of one stage or of several, in the order of `TIMESTAMPS`. A tuple costs less than an
object with names."""
_AFTER_FORWARD = len(BACKWARD_TIMES) + len(UPDATE_TIMES) + 1
INTERVALS = tuple(TIMESTAMPS.values())
"""Spans between consecutive timestamps of an iteration, in order."""
Column = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Function that computes a column from the numbers that `Clock.close` returns, shape (rows,
any)."""


def skip(stage: Mapping[str, str], moment: Any) -> Timestamps:
    """Return the timestamps of a stage that does not run, and so takes no time: all are this
    moment."""
    return (moment,) * len(stage)


def end_after_forward(end: Any) -> Timestamps:
    """Return the timestamps from the backward pass to the end, of an iteration without an update
    and without hooks there: all are its end."""
    return (end,) * _AFTER_FORWARD


def without_forward(
    start: Any, backward_times: Timestamps, update_times: Timestamps, end: Any
) -> Timestamps:
    """Return the timestamps of a turn without a forward pass, whose backward pass begins where the
    turn does."""
    return (start, *skip(FORWARD_TIMES, start), *backward_times, *update_times, end)


def wall_time(times: NDArray[np.float64]) -> NDArray[np.float64]:
    return times[:, -1] - times[:, -2]


NUMBERS = ("saving", "waiting", "last", *TIMESTAMPS)
"""Names of the numbers that `Clock.close` returns while it records, in order."""
_INDICES = {name: index for index, name in enumerate(NUMBERS)}


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
