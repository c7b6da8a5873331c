"""Costs of hooks, and of saving at the end of phases."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from orchestrator import units
from orchestrator.doctor.finding import Finding
from orchestrator.tables.hook_costs import compute_hook_shares, suggest_every

HOOK_SHARE = 0.03
"""Smallest share of the time that a hook may take to be a finding."""
SAVING_SHARE = 0.05
"""Smallest share of the time that saving may take to be a finding."""
_ONCE = ("on_load", "on_start", "on_end", "on_exception")
"""Events that fire once in an attempt."""
_SAVING = ("save", "on_checkpoint", "on_save")
"""Events at which a checkpoint is written."""


def find_costly_hooks(seconds: pd.DataFrame, costs: pd.DataFrame) -> Iterator[Finding]:
    """Yield findings on costly hooks, and on saving at the end of phases.

    Args:
        seconds: Times per rank, as `sum_times` returns them.
        costs: The hooks' costs.
    """
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
        min_share = SAVING_SHARE if is_saving else HOOK_SHARE
        worst = rows.loc[rows["share"].idxmax()]
        if worst["share"] < min_share:
            continue

        kind = "hook"
        advice = _advise_on_hook(worst)
        if is_saving:
            kind = "checkpoint"
            advice = "save less often, or to faster storage"
        yield Finding(
            kind,
            _describe_cost(worst, len(iterations_s)),
            {
                "hook": str(hook),
                "event": str(event),
                "rank": int(worst["rank"]),
                "seconds": float(worst["seconds"]),
                "calls": int(worst["calls"]),
                "share": float(worst["share"]),
                "seconds_by_rank": rows.set_index("rank")["seconds"].to_dict(),
            },
            query="hookyard stats RUN --by hook",
            advice=advice,
            weight=float(worst["share"]),
        )


def _describe_cost(worst: Any, n_ranks: int) -> str:
    """Describe the cost of a hook at an event on the rank where it is highest."""
    name = f"{worst['hook']} ({worst['event']})"
    if worst["event"] == "save":
        name = "saving checkpoints between phases"
    place = f", {worst['share']:.1%} of the time"
    if n_ranks > 1:
        place = f" on rank {worst['rank']}, {worst['share']:.1%} of its time"
    calls = units.format_count(int(worst["calls"]), "call")
    each = units.format_seconds(worst["seconds"] / max(worst["calls"], 1))
    return f"{name} took {units.format_seconds(worst['seconds'])}{place} ({calls}, {each} each)"


def _advise_on_hook(worst: Any) -> str:
    """Return what to do about a costly hook."""
    if worst["event"] in _ONCE:
        return "leave it out, or train for longer: it does this once"
    every = suggest_every(str(worst["event"]), worst.get("every"), float(worst["share"]))
    if every:
        return f"hooks.{worst['hook']}.every={every} takes 1% of the time; or leave it out"
    return "call it less often, or leave it out"
