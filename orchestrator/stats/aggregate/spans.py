"""The spans of an iteration, by name: what the clock measures and the tables sum up."""

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
"""They add up to the iteration's time."""
TIMES = (*SPANS, "step_s", "host_step_s")
"""All columns of time that a row may have by itself: the spans, their sum, and beside a device's time the host's."""
