"""Comparison of the times and the memory of runs, and which of the differences are noise.

Consecutive iterations are not independent samples: the machine was busy, the cache was warm. So
each run's iterations are split into N_BLOCKS blocks of equal length, and a permutation test
compares the medians of the blocks, or for a total their means. A difference is significant if fewer
than one in a hundred permutations give one as large.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.tables.compared_values import (
    ComparedValues,
    Series,
    Verdict,
    compare_with_first,
    drop_unmeasured,
    get_numbers,
    make_verdict,
    summarize,
)
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.significance import is_significant

N_BLOCKS = 10
MIN_ITERATIONS = 40
"""Smallest number of iterations that shows how much a run fluctuates."""
MEMORY = ("rss_bytes", "cuda_peak_allocated_bytes")
MAX_ITERATIONS = 2**22
"""A run with more iterations is sampled in stretches of STRETCH_LENGTH iterations."""
STRETCH_LENGTH = 1000


@dataclass(frozen=True)
class Totals:
    """Time and samples of all training iterations of a run; NaN is unknown."""

    train_s: float = math.nan
    """Time of the slowest rank."""
    samples: float = math.nan
    """Samples of all ranks."""


def compare_costs(
    runs: Sequence[Rows], halves: Sequence[pd.DataFrame]
) -> dict[str, ComparedValues]:
    """Compare the times and the memory that the runs have measured."""
    tables = [_load_iterations(rows, table) for rows, table in zip(runs, halves, strict=True)]
    compared = {}
    for name in ("step_s", "data_wait_s"):
        series = [get_numbers(table, name) for table in tables]
        blocks = [summarize_blocks(numbers) for numbers in series]
        medians = summarize(series, np.median)
        compared[name] = compare_with_first(medians, blocks, classify_cost_difference)
    totals = [_load_totals(rows) for rows in runs]
    compared["samples_per_s"] = _compare_throughputs(totals, tables)
    compared["train_s"] = _compare_training_times(totals, tables)
    for name in MEMORY:
        series = [get_numbers(table, name) for table in halves]
        compared[f"peak_{name.removeprefix('cuda_peak_')}"] = compare_with_first(
            summarize(series, np.max), series, classify_memory_difference
        )
    return drop_unmeasured(compared)


def _compare_throughputs(
    totals: Sequence[Totals], tables: Sequence[pd.DataFrame]
) -> ComparedValues:
    """Compare the training samples of all ranks by the training time, as in the trials of a
    sweep."""
    values = [_get_finite(total.samples / (total.train_s or math.nan)) for total in totals]
    # The test is that of the time per sample: the mean of the blocks' throughputs would not be the
    # run's, and could differ where the time does not.
    parts = [_estimate_times_per_sample(table) for table in tables]
    return compare_with_first(values, parts, classify_cost_difference)


def _estimate_times_per_sample(table: pd.DataFrame) -> Series:
    """Return what the training time per sample would be if each block were typical; none without
    samples."""
    samples = get_numbers(table, "samples").sum()
    return _estimate_training_times(table) / samples if samples else np.empty(0)


def _compare_training_times(
    totals: Sequence[Totals], tables: Sequence[pd.DataFrame]
) -> ComparedValues:
    values = [_get_finite(total.train_s) for total in totals]
    parts = [_estimate_training_times(table) for table in tables]
    return compare_with_first(values, parts, classify_cost_difference)


def _estimate_training_times(table: pd.DataFrame) -> Series:
    """Return what the training time would be if each block were typical; the mean is the total."""
    step_s = get_numbers(table, "step_s")
    return summarize_blocks(step_s, np.mean) * len(step_s)


def _get_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _load_totals(rows: Rows) -> Totals:
    if "step_s" not in rows.columns:
        return Totals()
    columns = {"seconds": "sum(step_s)"}
    if "batch_size" in rows.columns:
        columns["samples"] = "sum(batch_size)"
    by_rank = rows.aggregate(columns, ["rank"], TRAINING)
    samples = float(by_rank["samples"].sum(min_count=1)) if "samples" in by_rank else math.nan
    return Totals(float(by_rank["seconds"].max()), samples)


def load_halves(rows: Rows) -> pd.DataFrame:
    """Return the number of `rows` and the largest memory of each rank in each half of the run."""
    peaks = {name: f"max({name})" for name in MEMORY if name in rows.columns}
    half = "iteration > (select (min(iteration) + max(iteration)) / 2 from rows)"
    return rows.aggregate({"rows": "count(*)", **peaks}, ["rank", half])


def _load_iterations(rows: Rows, halves: pd.DataFrame) -> pd.DataFrame:
    """Return the slowest rank's times and all ranks' `samples` of each training iteration.

    A long run is sampled: stretches of STRETCH_LENGTH iterations, evenly spaced. `halves` is from
    load_halves.
    """
    if not {"epoch", "step_s"} <= {*rows.columns}:
        return pd.DataFrame()

    columns = {"step_s": "max(step_s)"}
    if "data_wait_s" in rows.columns:
        columns["data_wait_s"] = "max(data_wait_s)"
    if "batch_size" in rows.columns:
        columns["samples"] = "sum(batch_size)"

    rows_of_ranks = halves["rows"].groupby("rank").sum()
    every = max([1, *(rows_of_ranks // MAX_ITERATIONS)])
    where = f"{TRAINING} and iteration // {STRETCH_LENGTH} % {every} = 0"
    return rows.aggregate(columns, ["epoch", "iteration"], where)


def summarize_blocks(series: Series, summary: Callable[[Series], Any] = np.median) -> Series:
    """Return a number for each of N_BLOCKS blocks of a series; none if it is shorter than
    MIN_ITERATIONS."""
    if len(series) < MIN_ITERATIONS:
        return np.empty(0)
    return np.array([summary(block) for block in np.array_split(series, N_BLOCKS)])


def classify_cost_difference(difference: float, first: Series, other: Series) -> Verdict:
    """Return the direction of a difference that passes a permutation test of the blocks, otherwise
    `noise`."""
    if not len(first) or not len(other):
        return "unknown"
    return make_verdict(difference, is_real=is_significant(first, other, np.mean))


def classify_memory_difference(difference: float, first: Series, other: Series) -> Verdict:
    """Return the direction of a difference larger than between ranks and halves of one run,
    otherwise `noise`."""
    if min(len(first), len(other)) < 2:
        return "unknown"
    largest_range = max(float(np.ptp(first)), float(np.ptp(other)))
    return make_verdict(difference, is_real=abs(difference) > largest_range)
