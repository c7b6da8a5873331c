"""Resource usage: the time and memory that a run took."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.records.metadata import Attempt
from orchestrator.stats.read.query import TRAINING, Rows
from orchestrator.stats.write.checksums import check_footer

_PEAKS = {
    "rss_bytes": "process_peak_rss_bytes",
    "cuda_peak_allocated_bytes": "peak_allocated_bytes",
    "cuda_peak_reserved_bytes": "peak_reserved_bytes",
}
_MEANS = ("gpu_utilization_percent", "gpu_power_w")
_METADATA_KEY = b"hookyard.usage"


def compute_usage(rows: Rows) -> dict[str, float]:
    """Return the time and memory of a run; a number that no row has is missing.

    `ranks`; over the training iterations `step_s` (median), `train_s`, `data_wait_share` (of the time of all ranks) and
    `samples_per_s` (all ranks together, over `train_s`); over all rows `process_peak_rss_bytes` (with what earlier runs
    left in a process that stays warm), `peak_allocated_bytes` and `peak_reserved_bytes` (the largest of any rank),
    `gpu_utilization_percent` and `gpu_power_w` (means).
    """
    known = {*rows.columns}
    expressions = {"ranks": "count(distinct rank)"}
    expressions |= {name: f"max({column})" for column, name in _PEAKS.items() if column in known}
    expressions |= {name: f"avg({name})" for name in _MEANS if name in known}
    values = dict(zip(expressions, rows.aggregate(expressions).iloc[0], strict=True))
    if "step_s" in known:
        values["step_s"] = rows.quantiles({"step_s": "step_s"}, [0.5], TRAINING).iloc[0, 0]
        values["train_s"] = compute_train_s(rows)
        ratios = {}
        if "data_wait_s" in known:  # only of the iterations in which it was measured
            ratios["data_wait_share"] = "sum(data_wait_s) / sum(step_s) filter (data_wait_s is not null)"
        if "batch_size" in known:
            ratios["samples_per_s"] = f"sum(batch_size) / {values['train_s']}"
        if values["train_s"] > 0:
            values.update(zip(ratios, rows.aggregate(ratios, where=TRAINING).iloc[0], strict=True))
    return {name: int(value) if name == "ranks" else float(value) for name, value in values.items() if value == value}


def compute_train_s(rows: Rows) -> float:
    """Return the training time of the slowest rank, in seconds; NaN if nothing was timed."""
    if "step_s" not in rows.columns:
        return math.nan
    return float(rows.aggregate({"s": "sum(step_s)"}, ["rank"], TRAINING)["s"].max())


def add_usage(rows: pa.Table, attempts: Sequence[Attempt]) -> pa.Table:
    """Add the usage of the valid rows to the table's metadata, so that a sweep's table need not read the rows."""
    valid_rows = Rows.wrap(rows.filter(pc.invert(rows["superseded"])))
    stored = json.dumps({"attempts": len(attempts), "usage": compute_usage(valid_rows)})
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), _METADATA_KEY: stored})


def read_stored_usage(file: Any, attempts: Sequence[Attempt]) -> dict[str, float] | None:
    """Return the usage that `add_usage` stored in a Parquet file; None if there is none, or if an attempt began since.

    Raises ArrowException, OSError or ValueError for a damaged file.
    """
    check_footer(file)
    text = (pq.read_schema(file).metadata or {}).get(_METADATA_KEY)
    stored = json.loads(text) if text else None
    return stored["usage"] if stored and stored["attempts"] == len(attempts) else None
