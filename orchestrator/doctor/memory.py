"""Memory: leaks, imbalance across ranks, and memory that is nearly full."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from orchestrator import units
from orchestrator.doctor.finding import Finding, format_ranks
from orchestrator.doctor.gradient_syncs import find_rank_with_max
from orchestrator.doctor.robust_statistics import estimate_lower_spread
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks, quote

LEAK_COLUMNS = ("rss_bytes", "cuda_allocated_bytes")
"""Columns that show a leak. PyTorch's reserved memory does not: it also grows without one."""
IMBALANCE_COLUMNS = ("rss_bytes", "cuda_peak_allocated_bytes")
WARM_UP_SHARE = 0.25
"""Share of a run in which buffers and caches reach their size."""
N_STRETCHES, MIN_READINGS = 10, 4
"""Number of equal stretches of the rest of the run, and the smallest number of readings in each."""
N_IGNORED_RISES = 3
"""Number of largest rises from one stretch to the next that are ignored, because buffers grow
too."""
MIN_GROWTH = 0.042
"""Smallest steady growth over all stretches, relative to the memory in use."""
MIN_GROWTH_PER_HALF = 0.2
"""Smallest share of the growth in each half of the stretches."""
MIN_IMBALANCE = 0.2
MIN_FREE_SHARE = 0.1


def find_memory_problems(rows: Rows) -> Iterator[Finding]:
    for column in LEAK_COLUMNS:
        if column in rows.columns:
            yield from _find_leaks(rows, column)
    for column in IMBALANCE_COLUMNS:
        if column in rows.columns:
            yield from _find_imbalance(rows, column)
    yield from _find_full_memory(rows)


def _find_leaks(rows: Rows, column: str) -> Iterator[Finding]:
    """Yield a finding if the median memory of each stretch rises steadily to the end.

    Medians ignore peaks that come and go.
    """
    read = f'{TRAINING} and "{column} known" > 0'
    ends = rows.aggregate(
        {"first": "min(first)", "last": "max(iteration)"}, where=read, table=rows.blocks
    ).dropna()
    if ends.empty:
        return
    first, last = (float(ends[name].iloc[0]) for name in ("first", "last"))
    begin = first + WARM_UP_SHARE * (last - first)
    stretch = f"floor({N_STRETCHES} * (iteration - {begin}) / ({last} - {begin} + 1))"
    median = f"median({quote(f'{column} total')} / {quote(f'{column} known')})"
    medians = {"held": median, "readings": merge_blocks(column, "known"), "at": "avg(iteration)"}
    read_after = f"{read} and iteration >= {begin}"
    table: Any = (
        rows.aggregate(medians, ["rank", stretch], read_after, rows.blocks).unstack().astype(float)
    )
    used, ranks = table["held"][(table["readings"] >= MIN_READINGS).all(axis=1)], len(table)
    if used.shape[1] < N_STRETCHES:
        return
    start, middle, end = (used.iloc[:, place] for place in (0, N_STRETCHES // 2, -1))
    rises = np.sort(used.diff(axis=1).iloc[:, 1:], axis=1)
    steady_growth = rises[:, :-N_IGNORED_RISES].mean(axis=1) * rises.shape[1]
    is_lasting = np.minimum(middle - start, end - middle) >= MIN_GROWTH_PER_HALF * (end - start)
    leaks = is_lasting & (steady_growth >= MIN_GROWTH * start)
    if not leaks.any():
        return
    at = table["at"]
    per_1000 = (1000 * (end - start) / (at.iloc[:, -1] - at.iloc[:, 0]))[leaks]
    rank, leaking = find_rank_with_max(per_1000), per_1000.index.tolist()
    share = float(end[rank] / start[rank] - 1)
    yield Finding(
        "memory",
        f"{column} grows without stopping: {units.format_bytes(per_1000[rank])} per 1000 iterations on"
        f" rank {rank}, {share:.0%} since the first quarter of the run; it grows on {format_ranks(leaking, ranks)}",
        {
            "problem": "leak",
            "column": column,
            "rank": rank,
            "ranks": leaking,
            "bytes_per_1000_iterations": float(per_1000[rank]),
            "bytes_per_1000_iterations_by_rank": per_1000.to_dict(),
            "grown_share": share,
        },
        f"stats.dropna(subset=['{column}']).pivot_table(index='iteration', columns='rank', values='{column}')",
        "look for tensors kept with their graph (losses appended without .item()), lists that grow, caches without a"
        " bound; memory_snapshot shows who allocated",
        min(0.5, share / 2),
    )


def _find_imbalance(rows: Rows, column: str) -> Iterator[Finding]:
    mean = f"{merge_blocks(column, 'total')} / {merge_blocks(column, 'known')}"
    value = merge_blocks(column, "high") if column.startswith("cuda_peak") else mean
    used = rows.aggregate({column: value}, ["rank"], TRAINING, rows.blocks)[column].dropna()
    if len(used) < 2:
        return
    rank = find_rank_with_max(used)
    others = used.drop(rank)
    typical = float(others.median())
    more = float(used[rank]) - typical
    spread = 4 * estimate_lower_spread(used.to_numpy(dtype=float)) if len(used) > 3 else 0.0
    if typical <= 0 or more < max(MIN_IMBALANCE * typical, spread):
        return
    yield Finding(
        "memory",
        f"rank {rank} holds {units.format_bytes(more)} more than the others ({column}"
        f" {units.format_bytes(float(used[rank]))}, median of the others {units.format_bytes(typical)})",
        {
            "problem": "imbalance",
            "column": column,
            "rank": rank,
            "more_bytes": more,
            "more_share": more / typical,
            "bytes_by_rank": used.to_dict(),
        },
        f"stats.groupby('rank')['{column}'].agg(['median', 'max'])",
        "look at what this rank alone does (loggers, validation, data kept) and at the sizes of its samples",
        min(0.5, 0.1 * more / typical),
    )


def _find_full_memory(rows: Rows) -> Iterator[Finding]:
    columns = [
        name for name in ("system_memory_percent", "cuda_alloc_retries") if name in rows.columns
    ]
    if not columns:
        return
    ranks = rows.aggregate(
        {name: merge_blocks(name, "high") for name in columns}, ["rank"], table=rows.blocks
    )
    used = ranks.get("system_memory_percent", pd.Series(dtype=float)).dropna() / 100
    if len(used) and used.max() > 1 - MIN_FREE_SHARE:
        rank, left = find_rank_with_max(used), max(0.0, float(1 - used.max()))
        yield Finding(
            "memory",
            f"memory was nearly full on rank {rank}: {left:.1%} was left at the least (system_memory_percent)",
            {
                "problem": "room",
                "column": "system_memory_percent",
                "rank": rank,
                "left_share": left,
            },
            "1 - stats.groupby('rank')['system_memory_percent'].max() / 100",
            "smaller batches with `accumulate`, fewer loader workers, or a larger machine, before it fails",
            0.5,
        )
    if "cuda_alloc_retries" in ranks and ranks["cuda_alloc_retries"].max() > 0:
        retries = ranks["cuda_alloc_retries"]
        rank = find_rank_with_max(retries)
        yield Finding(
            "memory",
            f"the GPU of rank {rank} was full: its allocator emptied its cache {int(retries.max())} times to find room,"
            " waiting for the GPU each time",
            {
                "problem": "room",
                "column": "cuda_alloc_retries",
                "rank": rank,
                "retries": int(retries.max()),
            },
            "stats.groupby('rank')['cuda_alloc_retries'].max()",
            "smaller batches with `accumulate`, which can be `auto`, or"
            " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            0.3,
        )
