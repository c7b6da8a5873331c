"""Memory that grows without stopping."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from orchestrator import units
from orchestrator.doctor.finding import Finding, find_rank_with_max, format_rank, format_ranks
from orchestrator.tables.database import quote
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks

LEAK_COLUMNS = ("rss_bytes", "cuda_allocated_bytes")
"""Columns that show a leak. PyTorch's reserved memory does not: it also grows without one."""
WARM_UP_SHARE = 0.25
"""Share of an attempt in which buffers and caches reach their size."""
N_STRETCHES = 10
"""Number of equal stretches of the rest of the attempt."""
MIN_READINGS = 4
"""Smallest number of readings in each stretch."""
N_IGNORED_RISES = 3
"""Number of largest rises from one stretch to the next that are ignored, because buffers grow
too."""
MIN_GROWTH = 0.042
"""Smallest growth over all stretches at the mean of the other rises, relative to the memory in
use."""


def find_memory_leaks(rows: Rows) -> Iterator[Finding]:
    """Yield a finding on each column of memory that grows without stopping."""
    for column in LEAK_COLUMNS:
        if column in rows.columns:
            yield from _find_leaks(rows, column)


def _find_leaks(rows: Rows, column: str) -> Iterator[Finding]:
    """Yield a finding on the attempt that leaks most. A restart frees what leaked before it."""
    is_read = f'{TRAINING} and "{column} known" > 0'
    columns = {
        "first": "min(first)",
        "last": "max(iteration)",
        "readings": merge_blocks(column, "known"),
    }
    attempts = rows.aggregate(columns, ["attempt"], is_read, "blocks")
    findings = []
    for attempt, span in attempts[attempts["readings"] >= N_STRETCHES * MIN_READINGS].iterrows():
        where = f"{is_read} and attempt = {attempt}"
        stretches = _summarize_stretches(rows, column, where, span["first"], span["last"])
        leaking = _select_leaking_ranks(stretches)
        if len(leaking):
            n_ranks = len(rows.aggregate({}, ["rank"], table="blocks"))
            findings.append(_make_leak_finding(column, leaking, stretches["at"], n_ranks))
    if findings:
        yield max(findings, key=lambda finding: finding.weight)


def _select_leaking_ranks(stretches: Any) -> Any:
    """Return the memory of the ranks where it grows from stretch to stretch even without the largest
    rises."""
    is_read = (stretches["readings"] >= MIN_READINGS).all(axis=1)
    used = stretches["held"][is_read]
    if used.shape[1] < N_STRETCHES:
        return used.iloc[:0]
    rises = np.sort(used.diff(axis=1).iloc[:, 1:], axis=1)
    growth = rises[:, :-N_IGNORED_RISES].mean(axis=1) * rises.shape[1]
    return used[(growth > 0) & (growth >= MIN_GROWTH * used.iloc[:, 0])]


def _summarize_stretches(rows: Rows, column: str, where: str, first: float, last: float) -> Any:
    """Return each rank's median memory, number of readings and mean iteration in each stretch after
    the warm-up of an attempt, as a table.

    Medians ignore peaks that come and go.
    """
    begin = first + WARM_UP_SHARE * (last - first)
    stretch = f"floor({N_STRETCHES} * (iteration - {begin}) / ({last} - {begin} + 1))"
    columns = {
        "held": f"median({quote(f'{column} total')} / {quote(f'{column} known')})",
        "readings": merge_blocks(column, "known"),
        "at": "avg(iteration)",
    }
    after_warm_up = f"{where} and iteration >= {begin}"
    table = rows.aggregate(columns, ["rank", stretch], after_warm_up, "blocks")
    return table.unstack().astype(float)


def _make_leak_finding(
    column: str, leaking: pd.DataFrame, at: pd.DataFrame, n_ranks: int
) -> Finding:
    """Make the finding on the ranks whose memory `leaking` has, by stretch."""
    start = leaking.iloc[:, 0]
    end = leaking.iloc[:, -1]
    iterations = (at.iloc[:, -1] - at.iloc[:, 0])[leaking.index]
    per_1000 = 1000 * (end - start) / iterations

    rank = find_rank_with_max(per_1000)
    ranks = leaking.index.tolist()
    share = float(end[rank] / start[rank] - 1) if start[rank] else None
    speed = units.format_bytes(per_1000[rank])
    place = format_rank(rank, n_ranks)
    others = f"; it grows{format_ranks(ranks, n_ranks)}" if n_ranks > 1 else ""
    return Finding(
        "memory",
        f"{column} grows without stopping: {speed} per 1000 iterations{place}, from"
        f" {units.format_bytes(start[rank])} to {units.format_bytes(end[rank])} since the first"
        f" quarter of the attempt{others}",
        {
            "problem": "leak",
            "column": column,
            "rank": rank,
            "ranks": ranks,
            "bytes_per_1000_iterations": float(per_1000[rank]),
            "bytes_per_1000_iterations_by_rank": per_1000.to_dict(),
            "grown_share": share,
        },
        query=f"run.stats.dropna(subset=['{column}'])"
        f".pivot_table(index='iteration', columns='rank', values='{column}')",
        advice="look for tensors kept with their graph (losses appended without .item()), lists that"
        " grow, caches without a bound; memory_snapshot shows who allocated",
        weight=0.5 if share is None else min(0.5, share / 2),
    )
