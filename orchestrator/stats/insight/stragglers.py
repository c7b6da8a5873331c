"""Stragglers: ranks for which the others wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hooks.hook import WITHIN_ITERATION
from orchestrator.stats.aggregate import quantities
from orchestrator.stats.insight.finding import Finding
from orchestrator.stats.insight.gradient_syncs import MAY_WAIT, GradientSyncs
from orchestrator.stats.insight.robust_statistics import (
    Floats,
    beyond_others,
    block_medians,
    lower_spread,
    median_error,
    significant_errors,
    step_error,
)

LEAST_SHARE = 0.02
"""Smallest delay that is a finding, as a share of an iteration; over the whole run, half of it."""
LEAST_STALL, LEAST_STALLED_SHARE = 3.0, 0.005
"""Smallest single stall in iterations, and the smallest share of the run's time of all stalls."""
LEAST_STALLS = 5
"""Fewest stalls that are a finding though each is short."""
LEAST_OF_OTHERS = 4.0
"""Every rank stalls at times. A straggler's longest stall, or all of its stalls, are this many times any other's."""
LEAST_SYNCS = 16
"""Fewest exchanges of gradients for a finding."""
SETTLING = 2
"""First exchanges, which load libraries and allocate buffers, and so never count as stalls."""

_ADVICE = {
    "data_wait_s": "give the loader more workers or faster storage on this rank; look at the sizes of its samples",
    "to_device_s": "pin the loader's memory; look at what else uses this machine's bus",
    "forward_s": (
        "look at this machine's load, clocks and temperature (device_stats), and at the sizes of this rank's samples"
    ),
    "loss_s": "look at what the loss and the metrics of the task do on this rank alone",
    "backward_s": "look at this machine's load, clocks and temperature (device_stats)",
    "optimizer_s": "look at this machine's load, clocks and temperature (device_stats)",
    "hooks_s": "call the hook less often, or let it do its work on all ranks or in a thread",
    "checkpoint_s": "save less often, or to faster storage",
    "other_s": "look at what else runs on this machine, and at the storage that the rows are written to",
}


@dataclass(frozen=True)
class _Slow:
    """A slow rank and the span of its delay."""

    pattern: str
    column: int
    span: str
    lost_s: float
    """Mean delay per exchange."""
    numbers: dict[str, Any]
    """Numbers of the pattern."""


def stragglers(exchanges: GradientSyncs, costs: pd.DataFrame | None = None) -> list[Finding]:
    """Return a finding for each rank that delays the others: always, increasingly, or by stalls.

    The own work of ranks is compared within an iteration, so a slowdown of all ranks does not count. `costs`, those of
    hooks, tell which hook is slow.
    """
    if len(exchanges.ranks) < 2 or len(exchanges.iterations) < LEAST_SYNCS:
        return []
    excess = {span: beyond_others(seconds) for span, seconds in exchanges.local.items()}
    trusted = _trusted(exchanges)
    slow_ranks = [*_sustained(exchanges, excess, trusted), *_stalls(exchanges, excess, trusted)]
    if not slow_ranks:
        return []
    scores = _scores(exchanges)
    more = (
        _more_than_others(costs) if costs is not None and any(slow.span == "hooks_s" for slow in slow_ranks) else None
    )
    return [
        _finding(exchanges, slow, {name: float(values[slow.column]) for name, values in scores.items()}, more)
        for slow in slow_ranks
    ]


def _trusted(exchanges: GradientSyncs) -> dict[str, Floats]:
    """Return by span each rank's delay in that span and in those which are at least as certainly own work.

    A rank that waits in one span for a rank that is slow in another is behind in the first and ahead in the second. So
    its lead in certain own work counts against a delay that may be waiting.
    """
    own_work = [span for span in exchanges.local if span not in MAY_WAIT]
    surely = exchanges.sum_spans(own_work)
    excess = dict.fromkeys(own_work, beyond_others(surely))
    for span in (span for span in MAY_WAIT if span in exchanges.local):
        surely = surely + exchanges.local[span]
        excess[span] = beyond_others(surely)
    return excess


def _sustained(exchanges: GradientSyncs, excess: dict[str, Floats], trusted: dict[str, Floats]) -> Iterator[_Slow]:
    """Yield each rank that is slow for long, in one span or a little in all own work, with its slowest span."""
    limits = _Limits(exchanges, len(excess) + 1)
    levels = {span: np.median(seconds, axis=0) for span, seconds in excess.items()}
    own_work = [span for span in excess if span not in MAY_WAIT]
    trusted_blocks = {
        span: block_medians(trusted[span]) for span in (*own_work[:1], *(span for span in MAY_WAIT if span in excess))
    }
    slow_ranks: dict[int, _Slow] = {}
    for spans in [[span] for span in excess] + [own_work] * (len(own_work) > 1):
        # Times have long tails, so the median of a sum is more than the sum of medians.
        blocks = block_medians(excess[spans[0]] if len(spans) == 1 else beyond_others(exchanges.sum_spans(spans)))
        surely = trusted_blocks[spans[0] if spans[0] in MAY_WAIT else own_work[0]]
        for column, pattern in limits.slow(blocks, surely):
            span = max(spans, key=lambda name: float(levels[name][column]))
            slow = _Slow(pattern, column, span, float(np.mean(blocks[:, column])), {})
            if slow.lost_s >= LEAST_SHARE / 2 * exchanges.step_s and (
                column not in slow_ranks or slow.lost_s > slow_ranks[column].lost_s
            ):
                slow_ranks[column] = slow
    yield from slow_ranks.values()


class _Limits:
    """Thresholds of a delay: worth a finding, and not by chance."""

    def __init__(self, exchanges: GradientSyncs, spans: int) -> None:
        self._least_s = LEAST_SHARE * exchanges.step_s
        self._errors = significant_errors(2 * len(exchanges.ranks) * spans, len(block_medians(exchanges.step)))
        self._few = len(exchanges.ranks) < 4

    def slow(self, blocks: Floats, trusted: Floats) -> Iterator[tuple[int, str]]:
        """Yield the column and the pattern of ranks that are slow for long; arguments are delays by block."""
        level = np.median(blocks, axis=0)
        quarter = max(1, len(blocks) // 4)
        last = np.median(blocks[-quarter:], axis=0)
        change = last - np.median(blocks[:quarter], axis=0)
        spread = lower_spread(level)
        chronic = self._passed(level, median_error(blocks), spread)
        # From neighbouring blocks, since the change itself is not noise.
        changed = self._passed(change, 1.25 * step_error(blocks) * np.sqrt(2 / quarter), spread) & (
            last >= self._least_s
        )
        own = np.where(changed, np.median(trusted[-quarter:], axis=0), np.median(trusted, axis=0))
        now = np.where(changed, last, level)
        drifts = changed & (change > np.maximum(level, now / 2))
        for column in np.flatnonzero((chronic | changed) & (own >= now / 2)):
            yield int(column), "drifting" if drifts[column] else "chronic"

    def _passed(self, seconds: Floats, error: Floats, spread: float) -> NDArray[np.bool_]:
        """Return where a delay is large, significant, and more than the differences among other ranks."""
        return (seconds >= self._least_s) & (seconds > self._errors * error) & (self._few | (seconds > 4 * spread))


def _stalls(exchanges: GradientSyncs, excess: dict[str, Floats], trusted: dict[str, Floats]) -> Iterator[_Slow]:
    """Yield the rank that stalls most beyond its usual delay, if it does so much more than the others."""
    over = {}
    for span, seconds in excess.items():
        beyond = _beyond_level(seconds)
        usual = 1.48 * np.median(np.abs(beyond), axis=0)
        is_stall = beyond > np.maximum(6 * usual, LEAST_SHARE * exchanges.step_s)
        is_stall &= _beyond_level(trusted[span]) >= beyond / 2
        is_stall[:SETTLING] = False
        over[span] = np.where(is_stall, beyond, 0)
    stalls: Floats = sum(over.values(), start=np.zeros_like(exchanges.step))
    lost, longest = stalls.mean(axis=0), stalls.max(axis=0)
    column = int(lost.argmax())
    count = int(np.count_nonzero(stalls[:, column]))
    others_lost, others_longest = (LEAST_OF_OTHERS * np.delete(values, column).max() for values in (lost, longest))
    is_long = longest[column] > max(others_longest, LEAST_STALL * exchanges.step_s)
    is_frequent = count >= LEAST_STALLS and lost[column] > max(others_lost, LEAST_SHARE / 2 * exchanges.step_s)
    if lost[column] < LEAST_STALLED_SHARE * exchanges.step_s or not (is_long or is_frequent):
        return
    span = max(over, key=lambda name: float(over[name][:, column].sum()))
    iteration = int(exchanges.iterations[stalls[:, column].argmax()])
    numbers = {"stalls": count, "iteration": iteration, "longest_s": float(longest[column])}
    yield _Slow("stalls", column, span, float(lost[column]), numbers)


def _beyond_level(seconds: Floats) -> Floats:
    blocks = block_medians(seconds)
    levels = [
        np.broadcast_to(level, part.shape)
        for level, part in zip(blocks, np.array_split(seconds, len(blocks)), strict=True)
    ]
    beyond: Floats = seconds - np.concatenate(levels)
    return beyond


def _finding(exchanges: GradientSyncs, slow: _Slow, scores: dict[str, float], more: pd.DataFrame | None) -> Finding:
    rank, node = exchanges.ranks[slow.column], exchanges.nodes[slow.column]
    share = slow.lost_s / exchanges.step_s
    hook: Any = (
        more.index[int(more[rank].to_numpy().argmax())]
        if slow.span == "hooks_s" and more is not None and rank in more
        else None
    )
    numbers = {
        "rank": rank,
        "node": node,
        "span": slow.span,
        "pattern": slow.pattern,
        "lost_s": slow.lost_s,
        "lost_share": share,
        **scores,
        **slow.numbers,
        **({"hook": hook[0], "event": hook[1]} if hook else {}),
    }
    where = f"rank {rank} ({node})" if node else f"rank {rank}"
    what = f"{slow.span} (hook {hook[0]} at {hook[1]})" if hook else slow.span
    return Finding(
        "straggler",
        _sentence(exchanges, slow, f"{where} {{}} in {what}", share, scores),
        numbers,
        f"stats.query(\"phase == 'train'\").pivot(index='iteration', columns='rank', values='{slow.span}')",
        _ADVICE[slow.span],
        share,
    )


def _sentence(exchanges: GradientSyncs, slow: _Slow, where: str, share: float, scores: dict[str, float]) -> str:
    per = "step" if exchanges.steps_apart else "iteration"
    if slow.pattern == "stalls":
        count, iteration, longest_s = (slow.numbers[name] for name in ("stalls", "iteration", "longest_s"))
        times = "once" if count == 1 else f"{count} times"
        does = f"stalled {times}, for up to {quantities.seconds(longest_s)} (at iteration {iteration})"
        return f"{where.format(does)}; it cost {share:.1%} of the time"
    does = "is slow" if slow.pattern == "chronic" else "grows slower"
    return (
        f"{where.format(does)}: {quantities.seconds(slow.lost_s)} per {per} more than the others, {share:.1%} of the"
        f" time; it was the slowest in {scores['slowest_share']:.0%} of the {per}s (score"
        f" {scores['relative_score']:.2f} to the best rank, {scores['individual_score']:.2f} to its own best), and the"
        f" others waited {quantities.seconds(scores['others_wait_s'])} longer than it"
    )


def _scores(exchanges: GradientSyncs) -> dict[str, Floats]:
    """Return scores of each rank, 1 at best, as NVIDIA's Resiliency Extension has them.

    Relative: the best rank's work over this one's. Individual: its own best block over its last.
    """
    work = exchanges.work
    medians, own = np.median(work, axis=0), block_medians(work)
    slowest = np.bincount(work.argmax(axis=1), minlength=work.shape[1])
    return {
        "relative_score": np.divide(medians.min(), medians, out=np.ones_like(medians), where=medians > 0),
        "individual_score": np.divide(own.min(axis=0), own[-1], out=np.ones_like(medians), where=own[-1] > 0),
        "slowest_share": slowest / len(work),
        "others_wait_s": np.median(-beyond_others(exchanges.wait), axis=0),
    }


def _more_than_others(costs: pd.DataFrame) -> pd.DataFrame | None:
    """Return the cost of hooks within iterations beyond the median of other ranks; a column for each rank."""
    inner = costs[costs["event"].isin(WITHIN_ITERATION)]
    table = inner.pivot_table(index=["hook", "event"], columns="rank", values="seconds", aggfunc="sum").fillna(0.0)
    if table.shape[1] < 2:
        return None
    paid = table.to_numpy(dtype=float)
    return pd.DataFrame(beyond_others(paid), table.index, table.columns)
