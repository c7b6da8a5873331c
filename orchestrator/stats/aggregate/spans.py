"""The spans of an iteration: names of their columns."""

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
"""They add up to `step_s`."""
TIMES = (*SPANS, "step_s", "host_step_s")
"""All time columns of a row: the spans, their sum, and the host's time next to a device's."""
