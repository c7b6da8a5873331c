"""Costs of hooks, and of saving at the end of phases."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from orchestrator import units
from orchestrator.doctor.finding import Finding, format_rank
from orchestrator.tables.hook_costs import compute_hook_shares, suggest_every

HOOK_SHARE = 0.03
"""Smallest share of the time that a hook may take to be a finding."""
SAVING_SHARE = 0.05
"""Smallest share of the time that saving may take to be a finding."""
_ONCE = ("on_load", "on_start", "on_end", "on_exception")
"""Events that fire once in an attempt."""
_SAVING = ("save", "on_save", "on_saved")
"""Events at which a checkpoint is written or stored elsewhere."""


def find_costly_hooks(times: pd.DataFrame, costs: pd.DataFrame) -> Iterator[Finding]:
    """Yield findings on costly hooks, and on saving at the end of phases.

    Args:
        times: Times per rank, as `sum_times` returns them.
        costs: The hooks' costs.
    """
    costs = costs[costs["event"] != "write"]  # in the background
    if "all_s" not in times or costs.empty:
        return

    groups: Any = _add_shares(costs, times["all_s"]).groupby(["hook", "event"], sort=False)
    for _, rows in groups:
        finding = _find_cost(rows, len(times))
        if finding:
            yield finding


def _add_shares(costs: pd.DataFrame, iterations_s: "pd.Series[Any]") -> pd.DataFrame:
    """Add the share of each cost in the time of its rank, and leave out ranks without a time.

    `iterations_s` is the time of each rank's iterations.
    """
    shares = [
        compute_hook_shares(of_rank, float(iterations_s.get(rank, math.nan)))
        for rank, of_rank in costs.groupby("rank")
    ]
    return costs.assign(share=pd.concat(shares)).dropna(subset=["share"])


def _find_cost(rows: pd.DataFrame, n_ranks: int) -> Finding | None:
    """Return a finding on a hook's costs at one event, with a row for each rank; None if they are
    small on all ranks."""
    worst = rows.nlargest(1, "share").iloc[0]
    kind, min_share, advice = _classify(worst)
    if worst["share"] < min_share:
        return None

    return Finding(
        kind,
        _describe_cost(worst, n_ranks),
        {
            "hook": str(worst["hook"]),
            "event": str(worst["event"]),
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


def _classify(worst: Any) -> tuple[str, float, str]:
    """Return the kind of a cost, from which share on it is a finding, and what to do about it."""
    is_saving = worst["event"] in _SAVING or worst["hook"] == "checkpoint"
    kind, min_share = ("checkpoint", SAVING_SHARE) if is_saving else ("hook", HOOK_SHARE)
    if worst["event"] in _ONCE:
        advice = "this happens once per attempt, so longer training reduces its share"
        return kind, min_share, advice
    if is_saving:
        return kind, min_share, "save less often, or to faster storage"
    return kind, min_share, _advise_on_frequency(worst)


def _advise_on_frequency(worst: Any) -> str:
    """Return how often to call a costly hook."""
    every = suggest_every(str(worst["event"]), worst.get("every"), float(worst["share"]))
    if every:
        return f"hooks.{worst['hook']}.every={every} takes 1% of the time; or leave it out"
    return "call it less often, or leave it out"


def _describe_cost(worst: Any, n_ranks: int) -> str:
    """Describe the cost of a hook at an event on the rank where it is highest."""
    name = f"{worst['hook']} ({worst['event']})"
    if worst["event"] == "save":
        name = "saving checkpoints between phases"
    place = format_rank(int(worst["rank"]), n_ranks)
    time = "its time" if place else "the time"
    calls = units.format_count(int(worst["calls"]), "call")
    each = units.format_seconds(worst["seconds"] / max(worst["calls"], 1))
    return (
        f"{name} took {units.format_seconds(worst['seconds'])}{place},"
        f" {worst['share']:.1%} of {time} ({calls}, {each} each)"
    )
