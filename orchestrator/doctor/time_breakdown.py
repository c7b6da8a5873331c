"""Time breakdown: time for data, hooks and checkpoints, and outside all spans."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from orchestrator import units
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.gradient_syncs import find_rank_with_max
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks, quote
from orchestrator.tables.summaries import suggest_every
from orchestrator.units import SPANS

DATA_SHARE, HOOK_SHARE, SAVING_SHARE, OTHER_SHARE = 0.1, 0.03, 0.05, 0.1
"""Smallest shares of time that are findings."""
_ONCE = ("on_load", "on_start", "on_end", "on_exception")
"""Events that fire once in an attempt."""


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
            sums[f"{name} of"] = (
                f'sum("step_s total" * {quote(f"{name} known")} / rows) filter ({TRAINING})'
            )
    return rows.aggregate(sums, ["rank"], table=rows.blocks)


def _compute_shares(seconds: pd.DataFrame, span: str) -> "pd.Series[Any]":
    """Return the share of a span in each rank's time; empty if it was not measured."""
    return (
        (seconds[span] / seconds[f"{span} of"]).dropna()
        if span in seconds
        else pd.Series(dtype=float)
    )


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
    ranks = (
        f" on every rank ({shares.min():.0%} to {shares.max():.0%}; {median})"
        if len(shares) > 1
        else f" ({median})"
    )
    yield Finding(
        "data",
        f"training waits for data {share:.0%} of the time{ranks}",
        {
            "share": share,
            "min_share": float(shares.min()),
            "max_share": float(shares.max()),
            "data_wait_s": typical_s,
        },
        "stats.query(\"phase == 'train'\").groupby('rank')[['data_wait_s', 'step_s']].sum()",
        "more loader workers (loader.num_workers), or cheaper transforms, or samples decoded once and kept",
        share,
    )


def find_costly_hooks(seconds: pd.DataFrame, costs: pd.DataFrame) -> Iterator[Finding]:
    """Yield findings on costly hooks, and on saving at the end of phases."""
    if "all_s" not in seconds or not len(costs):
        return
    costs = costs[costs["event"] != "write"]  # in the background
    costs = costs.assign(share=costs["seconds"] / costs["rank"].map(seconds["all_s"])).dropna(
        subset=["share"]
    )
    groups: Any = costs.groupby(["hook", "event"], sort=False)
    for (hook, event), rows in groups:
        worst: Any = rows.loc[rows["share"].idxmax()]
        is_saving = event in ("save", "on_checkpoint", "on_save") or hook == "checkpoint"
        if worst["share"] < (SAVING_SHARE if is_saving else HOOK_SHARE):
            continue
        every = suggest_every(str(event), worst.get("every"), float(worst["share"]))
        if is_saving:
            advice = "save less often, or to faster storage"
        elif event in _ONCE:
            advice = "leave it out, or train for longer: it does this once"
        elif every:
            advice = f"hooks.{hook}.every={every} takes 1% of the time; or leave it out"
        else:
            advice = "call it less often, or leave it out"
        seconds_per_call = float(worst["seconds"] / max(worst["calls"], 1))
        name = "saving checkpoints between phases" if event == "save" else f"hook {hook} at {event}"
        yield Finding(
            "checkpoint" if is_saving else "hook",
            f"{name} took {units.format_seconds(worst['seconds'])} on rank {worst['rank']}, {worst['share']:.1%}"
            f" of its iterations' time ({worst['calls']} call{'' if worst['calls'] == 1 else 's'},"
            f" {units.format_seconds(seconds_per_call)} each)",
            {
                "hook": str(hook),
                "event": str(event),
                "rank": int(worst["rank"]),
                "seconds": float(worst["seconds"]),
                "calls": int(worst["calls"]),
                "share": float(worst["share"]),
                "seconds_by_rank": {
                    int(row["rank"]): float(row["seconds"]) for _, row in rows.iterrows()
                },
            },
            "hookyard stats RUN --by hook",
            advice,
            float(worst["share"]),
        )


def find_checkpoint_stalls(rows: Rows, seconds: pd.DataFrame) -> Iterator[Finding]:
    """Yield a finding if training often waits for checkpoints within phases."""
    shares = _compute_shares(seconds, "checkpoint_s")
    if not len(shares) or shares.max() < SAVING_SHARE:
        return
    rank, share = find_rank_with_max(shares), float(shares.max())
    stalls_of_rank = f"{TRAINING} and rank = {rank} and checkpoint_s > 0"
    stalls = rows.query(f"select checkpoint_s from rows where {stalls_of_rank}")["checkpoint_s"]
    median_s, max_s = float(stalls.median()), float(stalls.max())
    yield Finding(
        "checkpoint",
        f"training waited {share:.1%} of rank {rank}'s time for checkpoints: {len(stalls)} times,"
        f" {units.format_seconds(median_s)} typically and {units.format_seconds(max_s)} at most",
        {"rank": rank, "share": share, "times": len(stalls), "median_s": median_s, "max_s": max_s},
        "stats.query('checkpoint_s > 0')[['rank', 'iteration', 'checkpoint_s']]",
        "save less often (hooks.checkpoint.every), or to faster storage",
        share,
    )


def find_time_outside_spans(seconds: pd.DataFrame) -> Iterator[Finding]:
    """Yield a finding if much of the time is outside the named spans."""
    shares = _compute_shares(seconds, "other_s")
    share = float(shares.median()) if len(shares) else 0.0
    if share > OTHER_SHARE:
        yield Finding(
            "spans",
            f"{share:.0%} of the time is between the spans (other_s): counting, recording, and other work of the"
            " machine",
            {"share": share, "worst_rank": find_rank_with_max(shares)},
            "stats.query(\"phase == 'train'\").groupby('rank')[['other_s', 'step_s']].sum()",
            "such short iterations are mostly bookkeeping: use larger batches, or look for other work on the machine",
            share,
        )
