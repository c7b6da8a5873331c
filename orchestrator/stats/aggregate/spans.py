"""Column names of an iteration's spans."""

SPANS = (
    "data_wait_s",
    "to_device_s",
    "forward_s",
    "loss_s",
    "backward_s",
    "all_reduce_wait_s",
    "optimizer_s",
    "hooks_s",
    "checkpoint_s",
    "other_s",
)
"""Spans that add up to `step_s`."""
TIMES = (*SPANS, "step_s", "host_step_s")
"""All time columns of a row: the spans, their sum, and the host's time."""
