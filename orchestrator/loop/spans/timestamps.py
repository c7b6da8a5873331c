"""The spans of an iteration, and the timestamps that bound them."""

from collections.abc import Mapping
from typing import Any

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
INTERVALS = tuple(TIMESTAMPS.values())
"""Spans between consecutive timestamps of an iteration, in order."""
NUMBERS = ("saving", "waiting", "last", *TIMESTAMPS)
"""Names of the numbers that `SpanClock.close` returns while it records, in order."""


# Stages that an iteration leaves out

Timestamps = tuple[Any, ...]
"""Timestamps of one stage or of several, in the order of `TIMESTAMPS`. A tuple costs less than an
object with names."""
_AFTER_FORWARD = len(BACKWARD_TIMES) + len(UPDATE_TIMES) + 1
"""Number of timestamps from the backward pass to the end of an iteration without hooks there."""


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
