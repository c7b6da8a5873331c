"""Findings on slow ranks: what delays them, by how much, and what to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from hooks.hook import WITHIN_ITERATION
from orchestrator import units
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.gradient_syncs import GradientSyncs
from orchestrator.doctor.robust_statistics import (
    Floats,
    compute_block_medians,
    subtract_median_of_others,
)

_MACHINE = "look at this machine's load, clocks and temperature (device_stats)"
_ADVICE = {
    "data_wait_s": (
        "give the loader more workers or faster storage on this rank; look at the sizes of its"
        " samples"
    ),
    "to_device_s": "pin the loader's memory; look at what else uses this machine's bus",
    "forward_s": f"{_MACHINE}, and at the sizes of this rank's samples",
    "loss_s": "look at what the loss and the metrics of the task do on this rank alone",
    "backward_s": _MACHINE,
    "optimizer_s": _MACHINE,
    "hooks_s": "call the hook less often, or let it do its work on all ranks or in a thread",
    "checkpoint_s": "save less often, or to faster storage",
    "other_s": (
        "look at what else runs on this machine, and at the storage that the rows are written to"
    ),
}


@dataclass(frozen=True)
class Stalls:
    """The stalls of a rank beyond its usual delay."""

    count: int
    iteration: int
    """Iteration of the longest one."""
    longest_s: float

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        longest = units.format_seconds(self.longest_s)
        return f"stalled {times}, for up to {longest} (at iteration {self.iteration})"

    def to_numbers(self) -> dict[str, Any]:
        """Return the numbers of a finding."""
        return {"stalls": self.count, "iteration": self.iteration, "longest_s": self.longest_s}


@dataclass(frozen=True)
class SlowRank:
    """A slow rank, and the span in which it is delayed most."""

    pattern: Literal["chronic", "drifting", "stalls"]
    """Whether it is always slow, grows slower, or only stalls."""
    column: int
    span: str
    delay_s: float
    """Mean delay per sync."""
    stalls: Stalls | None = None
    """None for the other patterns."""


def make_findings(
    syncs: GradientSyncs, slow_ranks: Sequence[SlowRank], costs: pd.DataFrame | None
) -> list[Finding]:
    """Make a finding on each slow rank. The hook `costs` show which hook is slow."""
    scores = _compute_scores(syncs)
    hook_delays = None if costs is None else _compare_hook_costs(costs)
    findings = []
    for slow_rank in slow_ranks:
        own_scores = {name: float(values[slow_rank.column]) for name, values in scores.items()}
        hook = _find_slow_hook(syncs, slow_rank, hook_delays)
        findings.append(_make_finding(syncs, slow_rank, own_scores, hook))
    return findings


def _find_slow_hook(
    syncs: GradientSyncs, slow_rank: SlowRank, hook_delays: pd.DataFrame | None
) -> tuple[str, str] | None:
    """Return the hook and the event that delay a rank most; None if its hooks do not delay it."""
    rank = syncs.ranks[slow_rank.column]
    if slow_rank.span != "hooks_s" or hook_delays is None or rank not in hook_delays:
        return None
    hook: Any = hook_delays.index[int(hook_delays[rank].to_numpy().argmax())]
    return hook[0], hook[1]


def _make_finding(
    syncs: GradientSyncs,
    slow_rank: SlowRank,
    scores: dict[str, float],
    hook: tuple[str, str] | None,
) -> Finding:
    share = slow_rank.delay_s / syncs.step_s
    numbers: dict[str, Any] = {
        "rank": syncs.ranks[slow_rank.column],
        "node": syncs.nodes[slow_rank.column],
        "span": slow_rank.span,
        "pattern": slow_rank.pattern,
        "lost_s": slow_rank.delay_s,
        "lost_share": share,
        **scores,
    }
    if slow_rank.stalls:
        numbers |= slow_rank.stalls.to_numbers()
    if hook:
        name, event = hook
        numbers |= {"hook": name, "event": event}
    return Finding(
        "straggler",
        _describe(syncs, slow_rank, scores, hook),
        numbers,
        query="run.stats.query(\"phase == 'train'\")"
        f".pivot(index='iteration', columns='rank', values='{slow_rank.span}')",
        advice=_ADVICE[slow_rank.span],
        weight=share,
    )


def _describe(
    syncs: GradientSyncs,
    slow_rank: SlowRank,
    scores: dict[str, float],
    hook: tuple[str, str] | None,
) -> str:
    """Say which rank is slow, in which span, and what it costs."""
    rank = syncs.ranks[slow_rank.column]
    node = syncs.nodes[slow_rank.column]
    who = f"rank {rank} ({node})" if node else f"rank {rank}"
    where = slow_rank.span
    if hook:
        name, event = hook
        where += f" (hook {name} at {event})"
    if slow_rank.stalls:
        share = slow_rank.delay_s / syncs.step_s
        return f"{who} {slow_rank.stalls} in {where}; it cost {share:.1%} of the time"

    does = "is slow" if slow_rank.pattern == "chronic" else "grows slower"
    return f"{who} {does} in {where}: {_describe_delay(syncs, slow_rank, scores)}"


def _describe_delay(syncs: GradientSyncs, slow_rank: SlowRank, scores: dict[str, float]) -> str:
    share = slow_rank.delay_s / syncs.step_s
    per = "step" if syncs.has_several_iterations else "iteration"
    return (
        f"{units.format_seconds(slow_rank.delay_s)} per {per} more than the others, {share:.1%} of"
        f" the time; it was the slowest in {scores['slowest_share']:.0%} of the {per}s (score"
        f" {scores['relative_score']:.2f} to the best rank, {scores['individual_score']:.2f} to its"
        f" own best), and the others waited {units.format_seconds(scores['others_wait_s'])} longer"
        " than it"
    )


def _compute_scores(syncs: GradientSyncs) -> dict[str, Floats]:
    """Compute each rank's scores as in NVIDIA's Resiliency Extension; 1 is best.

    The relative score compares the rank with the fastest rank, the individual score with its own
    fastest block.
    """
    work = syncs.work
    medians = np.median(work, axis=0)
    blocks = compute_block_medians(work)
    slowest = np.bincount(work.argmax(axis=1), minlength=work.shape[1])
    return {
        "relative_score": _divide(medians.min(), medians),
        "individual_score": _divide(blocks.min(axis=0), blocks[-1]),
        "slowest_share": slowest / len(work),
        "others_wait_s": np.median(-subtract_median_of_others(syncs.wait), axis=0),
    }


def _divide(numbers: Floats, others: Floats) -> Floats:
    """Divide by numbers; 1 where they are 0."""
    return np.divide(numbers, others, out=np.ones_like(others), where=others > 0)


def _compare_hook_costs(costs: pd.DataFrame) -> pd.DataFrame | None:
    """Return the cost of hooks within iterations minus the median of the other ranks; one column
    per rank."""
    inner = costs[costs["event"].isin(WITHIN_ITERATION)]
    table = inner.pivot_table(
        index=["hook", "event"], columns="rank", values="seconds", aggfunc="sum"
    ).fillna(0.0)
    if table.shape[1] < 2:
        return None
    seconds = table.to_numpy(dtype=float)
    return pd.DataFrame(subtract_median_of_others(seconds), table.index, table.columns)
