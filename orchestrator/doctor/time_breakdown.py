"""Time breakdown: time for data and checkpoints within phases, and outside all spans."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from orchestrator import units
from orchestrator.column_names import SPANS
from orchestrator.doctor.finding import Finding, find_rank_with_max
from orchestrator.doctor.hook_costs import SAVING_SHARE
from orchestrator.tables.database import quote
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks

DATA_SHARE = 0.1
"""Smallest share of time that is a finding, here and below."""
OTHER_SHARE = 0.1


def sum_times(rows: Rows) -> pd.DataFrame:
    """Return seconds per rank: `all_s` in all phases, and in training each span and `SPAN of`.

    The latter is the time of the iterations in which the span was measured, in a block their number
    times the mean.
    """
    if "step_s" not in rows.columns:
        return rows.aggregate({}, ["rank"])
    sums = {"all_s": merge_blocks("step_s", "total")}
    for name in SPANS:
        if name in rows.columns:
            sums[name] = f"{merge_blocks(name, 'total')} filter ({TRAINING})"
            measured = quote(f"{name} known")
            sums[f"{name} of"] = f'sum("step_s total" * {measured} / rows) filter ({TRAINING})'
    return rows.aggregate(sums, ["rank"], table="blocks")


def _compute_shares(seconds: pd.DataFrame, span: str) -> "pd.Series[Any]":
    """Return the share of a span in each rank's time; empty if it was not measured."""
    if span not in seconds:
        return pd.Series(dtype=float)
    return (seconds[span] / seconds[f"{span} of"]).dropna()


def find_data_waits(typical: pd.DataFrame, seconds: pd.DataFrame) -> Iterator[Finding]:
    """Yield a finding if every rank waits for its loader. `seconds`, here and below, comes from
    `sum_times`."""
    shares = _compute_shares(seconds, "data_wait_s")
    if not len(shares):
        return
    # The lower median: if one of two ranks waits, it is a straggler.
    share = float(shares.sort_values().iloc[(len(shares) - 1) // 2])
    if share < DATA_SHARE:
        return
    typical_s = float(typical["data_wait_s"].median())
    median = f"median {units.format_seconds(typical_s)} per iteration"
    details = f"({median})"
    if len(shares) > 1:
        details = f"on every rank ({shares.min():.0%} to {shares.max():.0%}; {median})"
    yield Finding(
        "data",
        f"training waits for data {share:.0%} of the time {details}",
        {
            "share": share,
            "min_share": float(shares.min()),
            "max_share": float(shares.max()),
            "data_wait_s": typical_s,
        },
        query="run.stats.query(\"phase == 'train'\").groupby('rank')[['data_wait_s', 'step_s']].sum()",
        advice="more DataLoader workers (loader.num_workers), or cheaper transforms, or samples decoded once"
        " and kept",
        weight=share,
    )


def find_checkpoint_stalls(rows: Rows, seconds: pd.DataFrame) -> Iterator[Finding]:
    """Yield a finding if training often waits for checkpoints within phases."""
    shares = _compute_shares(seconds, "checkpoint_s")
    if not len(shares) or shares.max() < SAVING_SHARE:
        return
    rank = find_rank_with_max(shares)
    share = float(shares.max())
    stalls_of_rank = f"{TRAINING} and rank = {rank} and checkpoint_s > 0"
    stalls = rows.query(f"select checkpoint_s from rows where {stalls_of_rank}")["checkpoint_s"]
    median_s = float(stalls.median())
    max_s = float(stalls.max())
    whose = f"rank {rank}'s time" if len(shares) > 1 else "the time"
    yield Finding(
        "checkpoint",
        f"training waited {share:.1%} of {whose} for checkpoints: {units.format_count(len(stalls), 'time')},"
        f" {units.format_seconds(median_s)} typically and {units.format_seconds(max_s)} at most",
        {"rank": rank, "share": share, "times": len(stalls), "median_s": median_s, "max_s": max_s},
        query="run.stats.query('checkpoint_s > 0')[['rank', 'iteration', 'checkpoint_s']]",
        advice="save less often (hooks.checkpoint.every), or to faster storage",
        weight=share,
    )


def find_time_outside_spans(seconds: pd.DataFrame) -> Iterator[Finding]:
    """Yield a finding if much of the time is outside the named spans."""
    shares = _compute_shares(seconds, "other_s")
    share = float(shares.median()) if len(shares) else 0.0
    if share > OTHER_SHARE:
        yield Finding(
            "spans",
            f"{share:.0%} of the time is between the spans (other_s): counting, recording, and other"
            " work of the machine",
            {"share": share, "worst_rank": find_rank_with_max(shares)},
            query="run.stats.query(\"phase == 'train'\").groupby('rank')[['other_s', 'step_s']].sum()",
            advice="such short iterations are mostly bookkeeping: use larger batches, or look for other"
            " work on the machine",
            weight=share,
        )
