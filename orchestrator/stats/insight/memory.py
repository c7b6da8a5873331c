"""Memory: what grows, what one rank has more of than the others, and how much room is left."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.stats import quantities
from orchestrator.stats.insight.exchanges import rank_of_most
from orchestrator.stats.insight.robust import Slope, block_medians, lower_spread, theil_sen
from orchestrator.stats.insight.staircase import rise
from orchestrator.stats.insight.verdict import Verdict

GROWING = ("rss_bytes", "cuda_allocated_bytes")
"""Columns in which a leak shows; what torch's allocator holds in reserve grows without one."""
COMPARED = {"rss_bytes": "rss_bytes", "cuda_peak_allocated_bytes": "cuda_peak_allocated_bytes"}
CAPACITY = {"cuda_peak_reserved_bytes": "cuda_total_bytes", "rss_bytes": "memory_limit_bytes"}
"""Columns of what is used, and those of what there is, where a table has them."""
LEAST_READINGS = 40
"""With fewer readings after warming up, growth is not looked for."""
LEAST_GROWTH = 0.02
"""A leak adds at least this share of what was held, from the start of what is looked at to its end."""
VERY_STRONG, FOR_CHANCE = 10.0, 3.0
"""And rises all the time rather than in jumps, with so much evidence, and so much more for each logarithm of the number of
ranks, any of which might show it by chance; two would do if the stretches looked at did not resemble their neighbours."""
LASTING = 0.4
"""And each half of the time grows at least at this share of the whole's slope."""
LEAST_IMBALANCE = 0.2
LEAST_ROOM = 0.1
WARMING_UP = 0.25
"""The first part of a run, in which buffers and caches find their size."""


def memory(stats: pd.DataFrame) -> Iterator[Verdict]:
    """Leaks, imbalance over ranks, and memory that is nearly full."""
    rows = stats[stats["phase"] == "train"] if "phase" in stats else stats
    for column in GROWING:
        if column in rows:
            yield from _leaks(rows, column)
    for column in COMPARED:
        if column in rows:
            yield from _imbalance(rows, column)
    yield from _room(stats)


@dataclass(frozen=True)
class _Growth:
    rank: int
    slope: Slope
    """Bytes per iteration."""
    grown: float
    """Bytes over the stretch looked at."""
    share: float


def _leaks(rows: pd.DataFrame, column: str) -> Iterator[Verdict]:
    ranks = rows["rank"].nunique()
    by_rank: Any = rows[["rank", "iteration", column]].dropna().groupby("rank")
    found = (_growth(int(rank), own, column, VERY_STRONG + FOR_CHANCE * math.log(ranks)) for rank, own in by_rank)
    growths = [growth for growth in found if growth is not None]
    if not growths:
        return
    worst = max(growths, key=lambda growth: growth.slope.per_step)
    per_1000, low, high = (1000 * value for value in (worst.slope.per_step, worst.slope.low, worst.slope.high))
    growing = [growth.rank for growth in growths]
    yield Verdict(
        "memory",
        f"{column} grows and does not stop: {quantities.size(per_1000)} per 1000 iterations on rank {worst.rank} "
        f"({quantities.size(low)} to {quantities.size(high)} with 95 % confidence), {worst.share:.0%} since the first quarter of the "
        f"run; it grows on {_ranks(growing, ranks)}",
        {
            "problem": "leak",
            "column": column,
            "rank": worst.rank,
            "ranks": growing,
            "bytes_per_1000_iterations": per_1000,
            "low": low,
            "high": high,
            "bytes_per_1000_iterations_by_rank": {growth.rank: 1000 * growth.slope.per_step for growth in growths},
            "grown_share": worst.share,
        },
        f"stats.dropna(subset=['{column}']).pivot_table(index='iteration', columns='rank', values='{column}')",
        "look for tensors kept with their graph (losses appended without .item()), lists that grow, caches without a bound; "
        "memory_snapshot shows who allocated",
        min(0.5, worst.share / 2),
    )


def _growth(rank: int, rows: pd.DataFrame, column: str, least_evidence: float) -> _Growth | None:
    """The growth of a rank after warming up, if it goes on to the end and is not made of jumps."""
    held = rows.sort_values("iteration")
    held = held.iloc[int(WARMING_UP * len(held)) :]
    if len(held) < LEAST_READINGS:
        return None
    blocks = block_medians(held[["iteration", column]].to_numpy(dtype=float), most=24, least_length=2)
    slope, half = _slope(blocks), len(blocks) // 2
    grown = slope.per_step * float(blocks[-1, 0] - blocks[0, 0])
    share = grown / max(float(blocks[0, 1]), 1.0)
    if share < LEAST_GROWTH or slope.low <= 0:
        return None
    if min(_slope(part).per_step for part in (blocks[:half], blocks[half:])) < LASTING * slope.per_step:
        return None
    found = rise(blocks[:, 0], blocks[:, 1])
    # Between jumps it must grow about as much as over all, or there are as many jumps down as it rises.
    as_over_all = LASTING * slope.per_step < found.slope < 1.5 * slope.per_step
    return _Growth(rank, slope, grown, share) if found.evidence > least_evidence and as_over_all else None


def _slope(blocks: np.ndarray) -> Slope:
    return theil_sen(blocks[:, 0], blocks[:, 1])


def _ranks(ranks: list[int], of: int) -> str:
    if len(ranks) == of:
        return "every rank"
    return f"rank {ranks[0]} alone" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} of {of}"


def _imbalance(rows: pd.DataFrame, column: str) -> Iterator[Verdict]:
    held = rows.groupby("rank")[column].median().dropna() if column == "rss_bytes" else rows.groupby("rank")[column].max().dropna()
    if len(held) < 2:
        return
    rank = rank_of_most(held)
    others = held.drop(rank)
    usual = float(others.median())
    more = float(held[rank]) - usual
    if usual <= 0 or more < LEAST_IMBALANCE * usual or (len(held) > 3 and more < 4 * lower_spread(held.to_numpy(dtype=float))):
        return
    yield Verdict(
        "memory",
        f"rank {rank} holds {quantities.size(more)} more than the others ({column} {quantities.size(float(held[rank]))}, "
        f"median of the others {quantities.size(usual)})",
        {
            "problem": "imbalance",
            "column": column,
            "rank": rank,
            "more_bytes": more,
            "more_share": more / usual,
            "bytes_by_rank": dict(zip(map(int, held.index.tolist()), held.tolist(), strict=True)),
        },
        f"stats.groupby('rank')['{column}'].agg(['median', 'max'])",
        "look at what this rank alone does (loggers, validation, data kept) and at the sizes of its samples",
        min(0.5, 0.1 * more / usual),
    )


def _room(stats: pd.DataFrame) -> Iterator[Verdict]:
    for used, there_is in CAPACITY.items():
        if used in stats and there_is in stats:
            left = (1 - stats[used] / stats[there_is]).groupby(stats["rank"]).min().dropna()
            yield from _little_room(left, used, f"(1 - stats['{used}'] / stats['{there_is}']).groupby(stats['rank']).min()")
    if "system_memory_percent" in stats:
        left = (1 - stats.groupby("rank")["system_memory_percent"].max() / 100).dropna()
        yield from _little_room(left, "system_memory_percent", "1 - stats.groupby('rank')['system_memory_percent'].max() / 100")
    if "cuda_alloc_retries" in stats and (stats["cuda_alloc_retries"].max() or 0) > 0:
        retries = stats.groupby("rank")["cuda_alloc_retries"].max()
        rank = rank_of_most(retries)
        yield Verdict(
            "memory",
            f"the GPU of rank {rank} was full: its allocator emptied its cache {int(retries.max())} times to find room, waiting for the GPU each time",
            {"problem": "room", "column": "cuda_alloc_retries", "rank": rank, "retries": int(retries.max())},
            "stats.groupby('rank')['cuda_alloc_retries'].max()",
            "smaller batches with `accumulate`, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            0.3,
        )


def _little_room(left: pd.Series, column: str, query: str) -> Iterator[Verdict]:
    if not len(left) or left.min() >= LEAST_ROOM:
        return
    rank = rank_of_most(-left)
    yield Verdict(
        "memory",
        f"memory was nearly full on rank {rank}: {max(0.0, float(left.min())):.1%} was left at the least ({column})",
        {"problem": "room", "column": column, "rank": rank, "left_share": float(left.min())},
        query,
        "smaller batches with `accumulate`, fewer loader workers, or a larger machine, before it fails",
        0.5,
    )
