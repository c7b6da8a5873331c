"""Names of columns: the spans of an iteration, and what other names begin or end with."""

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
"""Columns of the spans of an iteration, which add up to `step_s`."""
TIMES = (*SPANS, "step_s", "host_step_s")
"""All time columns of a row: the spans, their sum, and the host's time."""
CONFIG = "config/"
"""Prefix of a column that holds a setting of an experiment: `config/optimizer.lr`."""
COSTS = ("_s", "_bytes")
"""Suffixes of reported costs, as opposed to metrics of the model."""
