"""Usage: the time and memory a run took, in a few numbers that its file of rows keeps beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.records.metadata import Attempt
from orchestrator.stats.read.recorded_files import COMPACTED
from orchestrator.stats.write.checksums import check_footer

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.stats.read.query import Rows

_PEAKS = {
    "rss_bytes": "process_peak_rss_bytes",
    "cuda_peak_allocated_bytes": "peak_allocated_bytes",
    "cuda_peak_reserved_bytes": "peak_reserved_bytes",
}
_MEANS = ("gpu_utilization_percent", "gpu_power_w")
_COLUMNS = ("rank", "phase", "step_s", "data_wait_s", "batch_size", *_PEAKS, *_MEANS)
_KEY = b"hookyard.usage.2"


def usage(stats: pd.DataFrame) -> dict[str, float]:
    """What the rows of all ranks come to.

    `ranks`; over the training iterations `step_s` (median), `train_s` (the slowest rank's sum), `data_wait_share` (of
    the time of all ranks) and `samples_per_s` (all ranks together, over `train_s`); over all rows
    `process_peak_rss_bytes` (with what earlier runs left in a process that stays warm), `peak_allocated_bytes` and
    `peak_reserved_bytes` (the largest of any rank), `gpu_utilization_percent` and `gpu_power_w` (means). What no row
    holds is not there.
    """
    found: dict[str, Any] = {"ranks": int(stats["rank"].nunique())}
    training = stats[stats["phase"] == "train"]
    if len(training) and "step_s" in training:
        found["step_s"] = training["step_s"].median()
        found["train_s"] = training.groupby("rank")["step_s"].sum().max()
        if "data_wait_s" in training:
            found["data_wait_share"] = training["data_wait_s"].sum() / training["step_s"].sum()
        if "batch_size" in training:
            found["samples_per_s"] = training["batch_size"].sum() / found["train_s"]
    found |= {name: stats[column].max() for column, name in _PEAKS.items() if column in stats}
    found |= {name: stats[name].mean() for name in _MEANS if name in stats}
    return {name: value if name == "ranks" else float(value) for name, value in found.items() if value == value}


def usage_of_many(rows: Rows) -> dict[str, float]:
    """What `usage` says, of rows of any number; in bounded memory."""
    known, training = {*rows.columns}, "phase = 'train'"
    every = {"ranks": "count(distinct rank)"}
    every |= {name: f"max({column})" for column, name in _PEAKS.items() if column in known}
    every |= {name: f"avg({name})" for name in _MEANS if name in known}
    found = dict(zip(every, rows.aggregate(every).iloc[0], strict=True))
    if "step_s" in known:
        found["step_s"] = rows.quantiles({"step_s": "step_s"}, [0.5], training).iloc[0, 0]
        summed: tuple[str, ...] = ("step_s", "data_wait_s", "batch_size")
        sums = {name: f"sum({name})" for name in summed if name in known}
        by_rank = rows.aggregate(sums, ["rank"], training)
        found["train_s"] = by_rank["step_s"].max()
        if "data_wait_s" in known:
            found["data_wait_share"] = by_rank["data_wait_s"].sum() / by_rank["step_s"].sum()
        if "batch_size" in known:
            found["samples_per_s"] = by_rank["batch_size"].sum() / found["train_s"]
    return {name: int(value) if name == "ranks" else float(value) for name, value in found.items() if value == value}


def with_usage(rows: pa.Table, attempts: Sequence[Attempt]) -> pa.Table:
    """Compacted rows, of which those that are superseded are marked, with what the others come to in the file's
    metadata, so that a table of a thousand trials reads a thousand footers and no row."""
    counted = rows.select([name for name in (*_COLUMNS, "superseded") if name in rows.column_names])
    stats = counted.filter(pc.invert(counted["superseded"])).to_pandas()
    kept = json.dumps({"attempts": len(attempts), "usage": usage(stats)})
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), _KEY: kept})


def kept_usage(file: Any, attempts: Sequence[Attempt]) -> dict[str, float] | None:
    """What `with_usage` kept in an open Parquet file; None where it did not, or an attempt has begun since. Raises
    ArrowException, OSError or ValueError where it is damaged."""
    check_footer(file, COMPACTED["rows"])
    text = (pq.read_schema(file).metadata or {}).get(_KEY)
    kept = json.loads(text) if text else None
    return kept["usage"] if kept and kept["attempts"] == len(attempts) else None
