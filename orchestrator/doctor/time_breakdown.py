"""Time breakdown: time for data, hooks and checkpoints, and outside all spans."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from orchestrator import units
from orchestrator.column_names import SPANS
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.gradient_syncs import find_rank_with_max
from orchestrator.tables.database import quote
from orchestrator.tables.hook_costs import compute_hook_shares, suggest_every
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks

DATA_SHARE = 0.1
"""Smallest share of time that is a finding, here and below."""
HOOK_SHARE = 0.03
SAVING_SHARE = 0.05
OTHER_SHARE = 0.1
_ONCE = ("on_load", "on_start", "on_end", "on_exception")
"""Events that fire once in an attempt."""
_SAVING = ("save", "on_checkpoint", "on_save")


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
    return rows.aggregate(sums, ["rank"], table=rows.blocks)


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
        "run.stats.query(\"phase == 'train'\").groupby('rank')[['data_wait_s', 'step_s']].sum()",
        "more DataLoader workers (loader.num_workers), or cheaper transforms, or samples decoded once"
        " and kept",
        share,
    )


def find_costly_hooks(seconds: pd.DataFrame, costs: pd.DataFrame) -> Iterator[Finding]:
    """Yield findings on costly hooks, and on saving at the end of phases."""
    if "all_s" not in seconds or not len(costs):
        return
    costs = costs[costs["event"] != "write"]  # in the background
    iterations_s = seconds["all_s"]
    shares = [
        compute_hook_shares(of_rank, float(iterations_s.get(rank, math.nan)))
        for rank, of_rank in costs.groupby("rank")
    ]
    costs = costs.assign(share=pd.concat(shares))
    groups: Any = costs.dropna(subset=["share"]).groupby(["hook", "event"], sort=False)
    for (hook, event), rows in groups:
        is_saving = event in _SAVING or hook == "checkpoint"
        if rows["share"].max() >= (SAVING_SHARE if is_saving else HOOK_SHARE):
            yield _make_hook_finding(str(hook), str(event), rows, is_saving, len(iterations_s))


def _make_hook_finding(hook: str, event: str, rows: Any, is_saving: bool, n_ranks: int) -> Finding:
    """Make the finding on a hook at an event; `rows` are its costs on each rank that runs it."""
    worst = rows.loc[rows["share"].idxmax()]
    rank = int(worst["rank"])
    calls = int(worst["calls"])
    seconds = float(worst["seconds"])
    share = float(worst["share"])
    place = f", {share:.1%} of the time"
    if n_ranks > 1:
        place = f" on rank {rank}, {share:.1%} of its time"
    name = "saving checkpoints between phases" if event == "save" else f"{hook} ({event})"
    return Finding(
        "checkpoint" if is_saving else "hook",
        f"{name} took {units.format_seconds(seconds)}{place}"
        f" ({units.format_count(calls, 'call')},"
        f" {units.format_seconds(seconds / max(calls, 1))} each)",
        {
            "hook": hook,
            "event": event,
            "rank": rank,
            "seconds": seconds,
            "calls": calls,
            "share": share,
            "seconds_by_rank": dict(
                zip(rows["rank"].tolist(), rows["seconds"].tolist(), strict=True)
            ),
        },
        "hookyard stats RUN --by hook",
        "save less often, or to faster storage"
        if is_saving
        else _advise_on_hook(hook, event, suggest_every(event, worst.get("every"), share)),
        share,
    )


def _advise_on_hook(hook: str, event: str, every: str | None) -> str:
    """Return what to do about a costly hook, which costs 1% of the time with `every`."""
    if event in _ONCE:
        return "leave it out, or train for longer: it does this once"
    if every:
        return f"hooks.{hook}.every={every} takes 1% of the time; or leave it out"
    return "call it less often, or leave it out"


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
        "run.stats.query('checkpoint_s > 0')[['rank', 'iteration', 'checkpoint_s']]",
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
            f"{share:.0%} of the time is between the spans (other_s): counting, recording, and other"
            " work of the machine",
            {"share": share, "worst_rank": find_rank_with_max(shares)},
            "run.stats.query(\"phase == 'train'\").groupby('rank')[['other_s', 'step_s']].sum()",
            "such short iterations are mostly bookkeeping: use larger batches, or look for other"
            " work on the machine",
            share,
        )
