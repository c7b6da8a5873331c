"""Memory: leaks, imbalance over ranks, and memory that is nearly full."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.blocks import high, known
from orchestrator.stats.insight.finding import Finding, rank_names
from orchestrator.stats.insight.gradient_syncs import rank_of_most
from orchestrator.stats.insight.robust_statistics import Floats, block_medians, lower_spread, theil_sen, without_spikes
from orchestrator.stats.insight.staircase import autocorrelation, rises
from orchestrator.stats.read.query import AT_ONCE, TRAINING, Rows

GROWING = ("rss_bytes", "cuda_allocated_bytes")
"""Columns that show a leak; reserved memory of torch's allocator also grows without one."""
COMPARED = ("rss_bytes", "cuda_peak_allocated_bytes")
CAPACITY = {"cuda_peak_reserved_bytes": "cuda_total_bytes", "rss_bytes": "memory_limit_bytes"}
"""Column of used memory -> column of available memory."""
LEAST_READINGS = 40
"""Fewest readings after warming up."""
LEAST_GROWTH = 0.02
"""Smallest growth after warming up, as a share of the memory held."""
VERY_STRONG, FOR_CHANCE = 9.0, 2.0
"""Least evidence for a steady rise rather than jumps, plus an allowance per logarithm of the number of ranks."""
MOST_MOMENTS = 100
"""Readings are averaged to at most this many."""
LASTING, BETWEEN_JUMPS = 0.25, (0.4, 1.5)
"""Least slope of each half, and bounds of the slope between jumps, as shares of the whole slope."""
LEAST_IMBALANCE = 0.2
LEAST_ROOM = 0.1
WARMING_UP = 0.25
"""Share of a run in which buffers and caches find their size."""


def memory(rows: Rows, typical: pd.DataFrame) -> Iterator[Finding]:
    """Yield findings on memory. `typical` are representative rows."""
    where = TRAINING if "phase" in rows.columns else "true"
    for column in GROWING:
        if column in rows.columns:
            yield from _leaks(rows, column, where)
    for column in COMPARED:
        if column in rows.columns:
            yield from _imbalance(rows, typical, column)
    yield from _room(rows)


@dataclass(frozen=True)
class _Series:
    """Memory of some ranks after warming up, with equally many readings each. Arrays have a row for each rank."""

    ranks: NDArray[np.int64]
    x: Floats
    """Median iterations of up to 24 stretches."""
    y: Floats
    """Median memory of these stretches."""
    moments: Floats
    """Readings, averaged to MOST_MOMENTS."""


def _leaks(rows: Rows, column: str, where: str) -> Iterator[Finding]:
    readings = rows.aggregate({"readings": known(column)}, ["rank"], TRAINING, rows.blocks)["readings"]
    ranks = len(readings)
    least_evidence = VERY_STRONG + FOR_CHANCE * math.log(max(1, ranks))
    enough = readings[readings - (WARMING_UP * readings).astype(int) >= LEAST_READINGS]
    parts = [
        _growths(_series(rows, column, where, alike.index.tolist(), int(count)), least_evidence)
        for count, alike in enough.groupby(enough)
    ]
    growths = pd.concat(parts).sort_index() if parts else pd.DataFrame()
    if not len(growths):
        return
    rank, growing = rank_of_most(growths["per_1000"]), growths.index.tolist()
    per_1000, low, high, share = growths.T[rank].tolist()
    yield Finding(
        "memory",
        f"{column} grows without stopping: {quantities.size(per_1000)} per 1000 iterations on rank {rank}"
        f" ({quantities.size(low)} to {quantities.size(high)} with 95 % confidence), {share:.0%} since the first"
        f" quarter of the run; it grows on {rank_names(growing, ranks)}",
        {
            "problem": "leak",
            "column": column,
            "rank": rank,
            "ranks": growing,
            "bytes_per_1000_iterations": per_1000,
            "low": low,
            "high": high,
            "bytes_per_1000_iterations_by_rank": growths["per_1000"].to_dict(),
            "grown_share": share,
        },
        f"stats.dropna(subset=['{column}']).pivot_table(index='iteration', columns='rank', values='{column}')",
        "look for tensors kept with their graph (losses appended without .item()), lists that grow, caches without a"
        " bound; memory_snapshot shows who allocated",
        min(0.5, share / 2),
    )


def _series(rows: Rows, column: str, where: str, ranks: Sequence[int], count: int) -> _Series:
    """Return the readings after warming up of ranks with `count` readings each."""
    together, parts = max(1, AT_ONCE // count), []
    for first in range(0, len(ranks), together):
        some = ", ".join(map(str, ranks[first : first + together]))
        read = rows.ask(
            f"select iteration, {column} as held from rows where {where} and isfinite({column}) and rank in ({some})"
            " order by rank, iteration"
        )
        iterations, held = (
            read[name].to_numpy(dtype=float).reshape(-1, count)[:, int(WARMING_UP * count) :]
            for name in ("iteration", "held")
        )
        x, y = (block_medians(values.T, most=24, least_length=2).T for values in (iterations, held))
        parts.append((x, y, _moments(held)))
    return _Series(np.array(ranks, dtype=np.int64), *map(np.concatenate, zip(*parts, strict=True)))


def _growths(series: _Series, least_evidence: float) -> pd.DataFrame:
    """Return bytes per 1000 iterations, bounds and share of the ranks whose memory grows steadily to the end."""
    x, y = series.x, series.y
    slope, half = theil_sen(x, y), x.shape[1] // 2
    grown = slope.per_step * (x[:, -1] - x[:, 0])
    share = grown / np.maximum(y[:, 0], 1.0)
    halves = [theil_sen(x[:, part], y[:, part]).per_step for part in (slice(half), slice(half, None))]
    grows = (share >= LEAST_GROWTH) & (slope.low > 0) & (np.minimum(*halves) >= LASTING * slope.per_step)
    growths = pd.DataFrame(
        {"per_1000": 1000 * slope.per_step, "low": 1000 * slope.low, "high": 1000 * slope.high, "share": share},
        series.ranks,
    )
    if not grows.any():
        return growths[grows]
    moments = without_spikes(series.moments)
    rise = rises(moments[grows], autocorrelation(moments))
    between, (low, high) = rise.slope * moments.shape[1] / grown[grows], BETWEEN_JUMPS
    grows[grows] = (rise.evidence > least_evidence) & (between > low) & (between < high)
    return growths[grows]


def _moments(held: Floats) -> Floats:
    """Average neighbouring readings to at most MOST_MOMENTS, without the first ones that are left over."""
    together = -(-held.shape[1] // MOST_MOMENTS)
    whole = held[:, held.shape[1] % together :]
    return np.asarray(whole.reshape(len(held), -1, together).mean(axis=2))


def _imbalance(rows: Rows, typical: pd.DataFrame, column: str) -> Iterator[Finding]:
    held = (
        typical.groupby("rank")[column].median()
        if column == "rss_bytes"
        else rows.aggregate({column: high(column)}, ["rank"], TRAINING, rows.blocks)[column]
    )
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
    columns = {
        f"{used} left": f'min(1 - "{used} high" / "{there_is} low")'
        for used, there_is in CAPACITY.items()
        if {used, there_is} <= {*rows.columns}
    }
    columns |= {name: high(name) for name in ("system_memory_percent", "cuda_alloc_retries") if name in rows.columns}
    if not columns:
        return
    ranks = rows.aggregate(columns, ["rank"], of=rows.blocks)
    for used, there_is in CAPACITY.items():
        if f"{used} left" in ranks:
            yield from _little_room(
                ranks[f"{used} left"].dropna(),
                used,
                f"(1 - stats['{used}'] / stats['{there_is}']).groupby(stats['rank']).min()",
            )
    if "system_memory_percent" in ranks:
        left = (1 - ranks["system_memory_percent"] / 100).dropna()
        yield from _little_room(
            left, "system_memory_percent", "1 - stats.groupby('rank')['system_memory_percent'].max() / 100"
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


def _little_room(left: pd.Series, column: str, query: str) -> Iterator[Finding]:
    if not len(left) or left.min() >= LEAST_ROOM:
        return
    rank = rank_of_most(-left)
    yield Finding(
        "memory",
        f"memory was nearly full on rank {rank}: {max(0.0, float(left.min())):.1%} was left at the least ({column})",
        {"problem": "room", "column": column, "rank": rank, "left_share": float(left.min())},
        query,
        "smaller batches with `accumulate`, fewer loader workers, or a larger machine, before it fails",
        0.5,
    )
