"""Use of memory: imbalance across ranks, and memory that is nearly full."""

from collections.abc import Iterator

import pandas as pd

from orchestrator import units
from orchestrator.doctor.finding import Finding, find_rank_with_max, format_rank
from orchestrator.doctor.robust_statistics import estimate_lower_spread
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks

IMBALANCE_COLUMNS = ("rss_bytes", "cuda_peak_allocated_bytes")
MIN_IMBALANCE = 0.2
"""Smallest excess of a rank over the others, relative to their memory."""
MIN_FREE_SHARE = 0.1
"""Share of the memory below which it is nearly full."""


def find_memory_problems(rows: Rows) -> Iterator[Finding]:
    """Yield findings on ranks that use more memory than others, and on full memory."""
    for column in IMBALANCE_COLUMNS:
        if column in rows.columns:
            yield from _find_imbalance(rows, column)

    if "system_memory_percent" in rows.columns:
        yield from _find_full_memory(rows)
    if "cuda_alloc_retries" in rows.columns:
        yield from _find_full_gpu(rows)


def _find_imbalance(rows: Rows, column: str) -> Iterator[Finding]:
    """Yield a finding if one rank uses far more memory than the others."""
    value = f"{merge_blocks(column, 'total')} / {merge_blocks(column, 'known')}"
    if column.startswith("cuda_peak"):
        value = merge_blocks(column, "high")
    used = rows.aggregate({column: value}, ["rank"], TRAINING, "blocks")[column].dropna()
    if len(used) < 2:
        return

    rank = find_rank_with_max(used)
    typical = float(used.drop(rank).median())
    more = float(used[rank]) - typical
    spread = estimate_lower_spread(used.to_numpy(dtype=float)) if len(used) > 3 else 0.0
    if typical <= 0 or more < max(MIN_IMBALANCE * typical, 4 * spread):
        return

    yield Finding(
        "memory",
        f"rank {rank} holds {units.format_bytes(more)} more than the others ({column}"
        f" {units.format_bytes(float(used[rank]))}, median of the others"
        f" {units.format_bytes(typical)})",
        {
            "problem": "imbalance",
            "column": column,
            "rank": rank,
            "more_bytes": more,
            "more_share": more / typical,
            "bytes_by_rank": used.to_dict(),
        },
        query=f"run.stats.groupby('rank')['{column}'].agg(['median', 'max'])",
        advice="look at what this rank alone does (loggers, validation, data kept) and at the sizes of"
        " its samples",
        weight=min(0.5, 0.1 * more / typical),
    )


def _find_full_memory(rows: Rows) -> Iterator[Finding]:
    """Yield a finding if a machine's memory was nearly full."""
    used = _get_maxima(rows, "system_memory_percent") / 100
    if used.empty or used.max() <= 1 - MIN_FREE_SHARE:
        return

    rank = find_rank_with_max(used)
    free_share = max(0.0, float(1 - used.max()))
    yield Finding(
        "memory",
        f"memory was nearly full{format_rank(rank, len(used))}: {free_share:.1%} was left at the least"
        " (system_memory_percent)",
        {
            "problem": "room",
            "column": "system_memory_percent",
            "rank": rank,
            "left_share": free_share,
        },
        query="1 - run.stats.groupby('rank')['system_memory_percent'].max() / 100",
        advice="smaller batches with `accumulate`, fewer DataLoader workers, or a larger machine, before it"
        " fails",
        weight=0.5,
    )


def _find_full_gpu(rows: Rows) -> Iterator[Finding]:
    """Yield a finding if PyTorch's allocator had to empty its cache."""
    retries = _get_maxima(rows, "cuda_alloc_retries")
    if retries.empty or retries.max() <= 0:
        return

    rank = find_rank_with_max(retries)
    whose = f" of rank {rank}" if len(retries) > 1 else ""
    yield Finding(
        "memory",
        f"the GPU{whose} was full: its allocator emptied its cache"
        f" {units.format_count(int(retries.max()), 'time')} to find room, waiting for the GPU each"
        " time",
        {
            "problem": "room",
            "column": "cuda_alloc_retries",
            "rank": rank,
            "retries": int(retries.max()),
        },
        query="run.stats.groupby('rank')['cuda_alloc_retries'].max()",
        advice="smaller batches with `accumulate`, which can be `auto`, or"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        weight=0.3,
    )


def _get_maxima(rows: Rows, column: str) -> "pd.Series[float]":
    """Return the largest value on each rank that has one."""
    maxima = {column: merge_blocks(column, "high")}
    return rows.aggregate(maxima, ["rank"], table="blocks")[column].dropna()
