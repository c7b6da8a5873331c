"""Resource usage: the time and memory that a run took."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.recorded_files import COMPACTED, open_parquet
from orchestrator.disk.rows.source import Source
from orchestrator.disk.rows.valid_rows import open_valid_rows
from orchestrator.storage import Storage
from orchestrator.storage.strict_json import format_json, parse_json

_PEAKS = {
    "rss_bytes": "process_peak_rss_bytes",
    "cuda_peak_allocated_bytes": "peak_allocated_bytes",
    "cuda_peak_reserved_bytes": "peak_reserved_bytes",
}
_MEANS = ("gpu_utilization_percent", "gpu_power_w")
_SUMS = ("step_s", "data_wait_s", "batch_size")
_NUMBERS = (*_SUMS, *_PEAKS, *_MEANS)
_AGGREGATES = [
    *((name, "sum") for name in (*_SUMS, "measured_s", *_MEANS)),
    *((name, "max") for name in _PEAKS),
    *((name, "count") for name in _MEANS),
]
"""What is computed of each rank's rows; pyarrow calls the results `step_s_sum`."""
_METADATA_KEY = b"hookyard.usage"
_MAX_MEDIAN_VALUES = 2**24
"""Maximum number of values for an exact median; the median of more is that of a sample."""


def load_usage(storage: Storage, attempts: Sequence[Attempt]) -> Mapping[str, float]:
    """Return a run's own usage, without the training of a leader. Raises DamagedFile."""
    with suppress(FileNotFoundError), open_parquet(storage, COMPACTED["rows"]) as parquet:
        stored = read_stored_usage(parquet, attempts)
        if stored:
            return stored
    without_leader = [replace(attempt, leader=None) for attempt in attempts]
    return compute_usage(open_valid_rows(storage, without_leader))


def compute_usage(source: Source) -> dict[str, float]:
    """Return the time and memory of a run; a number that no row has is missing. Raises DamagedFile.

    `ranks`; over the training iterations `step_s` (median), `train_s`, `data_wait_share` (of the
    time of all ranks) and `samples_per_s` (all ranks together, over `train_s`); over all rows
    `process_peak_rss_bytes` (with what earlier runs left in a process that stays warm),
    `peak_allocated_bytes` and `peak_reserved_bytes` (the largest of any rank),
    `gpu_utilization_percent` and `gpu_power_w` (means).
    """
    columns = [name for name in ("rank", "phase", *_NUMBERS) if name in source.schema.names]
    every = source.count_rows() // _MAX_MEDIAN_VALUES + 1
    parts = []
    times = []
    for batch in source.batches(columns):
        values = _read_values(batch)
        times.append(values["step_s"].drop_null().to_pandas()[::every])
        table = pa.table({"rank": batch["rank"], **values})
        parts.append(table.group_by("rank").aggregate(_AGGREGATES))
    if not parts:
        return {"ranks": 0}

    by_rank = pa.concat_tables(parts).to_pandas()
    usage = {"step_s": pd.concat(times).median(), **_combine(by_rank)}
    known = {name: float(value) for name, value in usage.items() if not math.isnan(value)}
    return {"ranks": by_rank["rank"].nunique(), **known}


def _combine(by_rank: pd.DataFrame) -> dict[str, float]:
    """Combine the aggregates of all ranks; unknown numbers are NaN."""
    peak = by_rank.max()
    total = by_rank.sum(min_count=1)
    train_s = by_rank.groupby("rank")["step_s_sum"].sum(min_count=1).max()
    return {
        "train_s": train_s,
        "data_wait_share": total["data_wait_s_sum"] / (total["measured_s_sum"] or math.nan),
        "samples_per_s": total["batch_size_sum"] / (train_s or math.nan),
        **{name: peak[f"{column}_max"] for column, name in _PEAKS.items()},
        **{name: total[f"{name}_sum"] / total[f"{name}_count"] for name in _MEANS},
    }


def _read_values(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of numbers; those to sum only in training iterations.

    `measured_s` is the time of the iterations whose wait for data is known.
    """
    values = {name: _read_numbers(batch, name) for name in _NUMBERS}
    is_training = pc.equal(batch["phase"], "train")
    for name in _SUMS:
        values[name] = pc.if_else(is_training, values[name], None)
    has_wait = pc.is_valid(values["data_wait_s"])
    values["measured_s"] = pc.if_else(has_wait, values["step_s"], None)
    return values


def _read_numbers(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column as doubles, with null in place of NaN and for a missing column."""
    if name not in batch.schema.names:
        return pa.nulls(len(batch), pa.float64())
    numbers = pc.cast(batch[name], pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(numbers), None, numbers)


def add_usage(rows: pa.Table, attempts: Sequence[Attempt]) -> pa.Table:
    """Add the usage of the valid rows to the table's metadata, so that a sweep's table need not
    read the rows."""
    usage = compute_usage(Source(ds.dataset(rows), ~ds.field("superseded")))
    stored = format_json({"attempts": len(attempts), "usage": usage})
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), _METADATA_KEY: stored})


def read_stored_usage(
    parquet: pq.ParquetFile, attempts: Sequence[Attempt]
) -> dict[str, float] | None:
    """Return the usage that `add_usage` stored in a Parquet file; None if there is none, or if it is
    older."""
    text = (parquet.metadata.metadata or {}).get(_METADATA_KEY)
    stored = parse_json(text) if text else None
    return stored["usage"] if stored and stored["attempts"] == len(attempts) else None
