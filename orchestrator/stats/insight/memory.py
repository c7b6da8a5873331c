"""Memory: leaks, imbalance across ranks, and memory that is nearly full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.row_blocks import high, known, quote, total
from orchestrator.stats.insight.finding import Finding, rank_names
from orchestrator.stats.insight.gradient_syncs import rank_of_most
from orchestrator.stats.insight.robust_statistics import lower_spread
from orchestrator.stats.read.query import TRAINING, Rows

GROWING = ("rss_bytes", "cuda_allocated_bytes")
"""Columns that show a leak; reserved memory of torch's allocator also grows without one."""
COMPARED = ("rss_bytes", "cuda_peak_allocated_bytes")
WARMING_UP = 0.25
"""Share of a run in which buffers and caches find their size."""
STRETCHES, LEAST_READINGS = 10, 4
"""Equal stretches of the rest of the run, and the fewest readings in each."""
JUMPS = 3
"""Number of the largest rises from one stretch to the next that do not count, as buffers grow too."""
LEAST_GROWTH = 0.042
"""Smallest steady growth over all stretches, as a share of the memory held."""
LASTING = 0.2
"""Least share of the growth in each half of the stretches."""
LEAST_IMBALANCE = 0.2
LEAST_ROOM = 0.1


def memory(rows: Rows) -> Iterator[Finding]:
    for column in GROWING:
        if column in rows.columns:
            yield from _leaks(rows, column)
    for column in COMPARED:
        if column in rows.columns:
            yield from _imbalance(rows, column)
    yield from _room(rows)


def _leaks(rows: Rows, column: str) -> Iterator[Finding]:
    """Yield a finding if the median memory of each stretch rises steadily to the end.

    Medians ignore peaks that come and go.
    """
    read = f'{TRAINING} and "{column} known" > 0'
    ends = rows.aggregate({"first": "min(first)", "last": "max(iteration)"}, where=read, of=rows.blocks)
    first, last = (float(ends[name].iloc[0]) for name in ("first", "last"))
    begin = first + WARMING_UP * (last - first)
    stretch = f"floor({STRETCHES} * (iteration - {begin}) / ({last} - {begin} + 1))"
    median = f"median({quote(f'{column} total')} / {quote(f'{column} known')})"
    medians = {"held": median, "readings": known(column), "at": "avg(iteration)"}
    read_after = f"{read} and iteration >= {begin}"
    table: Any = rows.aggregate(medians, ["rank", stretch], read_after, rows.blocks).unstack().astype(float)
    held, ranks = table["held"][(table["readings"] >= LEAST_READINGS).all(axis=1)], len(table)
    if held.shape[1] < STRETCHES:
        return
    start, middle, end = (held.iloc[:, place] for place in (0, STRETCHES // 2, -1))
    rises = np.sort(held.diff(axis=1).iloc[:, 1:], axis=1)
    steady = rises[:, :-JUMPS].mean(axis=1) * rises.shape[1]
    lasting = np.minimum(middle - start, end - middle) >= LASTING * (end - start)
    leaks = lasting & (steady >= LEAST_GROWTH * start)
    if not leaks.any():
        return
    at = table["at"]
    per_1000 = (1000 * (end - start) / (at.iloc[:, -1] - at.iloc[:, 0]))[leaks]
    rank, growing = rank_of_most(per_1000), per_1000.index.tolist()
    share = float(end[rank] / start[rank] - 1)
    yield Finding(
        "memory",
        f"{column} grows without stopping: {quantities.size(per_1000[rank])} per 1000 iterations on rank {rank},"
        f" {share:.0%} since the first quarter of the run; it grows on {rank_names(growing, ranks)}",
        {
            "problem": "leak",
            "column": column,
            "rank": rank,
            "ranks": growing,
            "bytes_per_1000_iterations": float(per_1000[rank]),
            "bytes_per_1000_iterations_by_rank": per_1000.to_dict(),
            "grown_share": share,
        },
        f"stats.dropna(subset=['{column}']).pivot_table(index='iteration', columns='rank', values='{column}')",
        "look for tensors kept with their graph (losses appended without .item()), lists that grow, caches without a"
        " bound; memory_snapshot shows who allocated",
        min(0.5, share / 2),
    )


def _imbalance(rows: Rows, column: str) -> Iterator[Finding]:
    value = high(column) if column.startswith("cuda_peak") else f"{total(column)} / nullif({known(column)}, 0)"
    held = rows.aggregate({column: value}, ["rank"], TRAINING, rows.blocks)[column]
    held = held.dropna()
    if len(held) < 2:
        return
    rank = rank_of_most(held)
    others = held.drop(rank)
    usual = float(others.median())
    more = float(held[rank]) - usual
    if (
        usual <= 0
        or more < LEAST_IMBALANCE * usual
        or (len(held) > 3 and more < 4 * lower_spread(held.to_numpy(dtype=float)))
    ):
        return
    yield Finding(
        "memory",
        f"rank {rank} holds {quantities.size(more)} more than the others ({column}"
        f" {quantities.size(float(held[rank]))}, median of the others {quantities.size(usual)})",
        {
            "problem": "imbalance",
            "column": column,
            "rank": rank,
            "more_bytes": more,
            "more_share": more / usual,
            "bytes_by_rank": held.to_dict(),
        },
        f"stats.groupby('rank')['{column}'].agg(['median', 'max'])",
        "look at what this rank alone does (loggers, validation, data kept) and at the sizes of its samples",
        min(0.5, 0.1 * more / usual),
    )


def _room(rows: Rows) -> Iterator[Finding]:
    columns: dict[str, str] = {
        name: high(name) for name in ("system_memory_percent", "cuda_alloc_retries") if name in rows.columns
    }
    if not columns:
        return
    ranks = rows.aggregate(columns, ["rank"], of=rows.blocks)
    used = ranks.get("system_memory_percent", pd.Series(dtype=float)).dropna() / 100
    if len(used) and used.max() > 1 - LEAST_ROOM:
        rank, left = rank_of_most(used), max(0.0, float(1 - used.max()))
        yield Finding(
            "memory",
            f"memory was nearly full on rank {rank}: {left:.1%} was left at the least (system_memory_percent)",
            {"problem": "room", "column": "system_memory_percent", "rank": rank, "left_share": left},
            "1 - stats.groupby('rank')['system_memory_percent'].max() / 100",
            "smaller batches with `accumulate`, fewer loader workers, or a larger machine, before it fails",
            0.5,
        )
    if "cuda_alloc_retries" in ranks and ranks["cuda_alloc_retries"].max() > 0:
        retries = ranks["cuda_alloc_retries"]
        rank = rank_of_most(retries)
        yield Finding(
            "memory",
            f"the GPU of rank {rank} was full: its allocator emptied its cache {int(retries.max())} times to find room,"
            " waiting for the GPU each time",
            {"problem": "room", "column": "cuda_alloc_retries", "rank": rank, "retries": int(retries.max())},
            "stats.groupby('rank')['cuda_alloc_retries'].max()",
            "smaller batches with `accumulate`, which can be `auto`, or"
            " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            0.3,
        )
