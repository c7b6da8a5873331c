"""Stragglers: ranks for which the others wait, in a whole run or in its last iterations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hooks.hook import WITHIN_ITERATION
from orchestrator import units
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.gradient_syncs import (
    MAY_WAIT,
    GradientSyncs,
    extract_gradient_syncs,
)
from orchestrator.doctor.robust_statistics import (
    Floats,
    compute_block_medians,
    compute_significance_threshold,
    estimate_change_error,
    estimate_lower_spread,
    estimate_median_error,
    subtract_median_of_others,
)

MIN_SHARE = 0.02
"""Smallest delay that is a finding, as a share of an iteration. The mean over the run may be half
of it."""
MIN_STALL, MIN_STALLED_SHARE = 3.0, 0.005
"""Smallest length of a long stall, in iterations, and the smallest share of the run's time that all
stalls take."""
MIN_STALLS = 5
"""Number of short stalls from which they are a finding."""
MIN_RATIO_TO_OTHERS = 4.0
"""Ratio of a straggler's stalls to those of any other rank, because every rank stalls at times."""
MIN_SYNCS = 16
"""Smallest number of syncs for a finding."""
N_WARM_UP_SYNCS = 2
"""Number of first syncs that are never stalls: they load libraries and allocate buffers."""

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
class _SlowRank:
    """A slow rank, and the span in which it is delayed most."""

    pattern: str
    column: int
    span: str
    delay_s: float
    """Mean delay per sync."""
    numbers: dict[str, Any]
    """Numbers of the pattern."""


def find_stragglers(syncs: GradientSyncs, costs: pd.DataFrame | None = None) -> list[Finding]:
    """Return a finding for each rank that delays the others: always, increasingly, or by stalls.

    Each rank's own work is compared with that of the others in the same iteration, so a slowdown of
    all ranks is no finding. The hook `costs` show which hook is slow.
    """
    if len(syncs.ranks) < 2 or len(syncs.iterations) < MIN_SYNCS:
        return []
    delays = {span: subtract_median_of_others(seconds) for span, seconds in syncs.local.items()}
    certain_delays = _compute_certain_delays(syncs)
    slow_ranks = [
        *_find_sustained(syncs, delays, certain_delays),
        *_find_stalls(syncs, delays, certain_delays),
    ]
    if not slow_ranks:
        return []
    scores = _compute_scores(syncs)
    hook_delays = (
        _compare_hook_costs(costs)
        if costs is not None and any(slow_rank.span == "hooks_s" for slow_rank in slow_ranks)
        else None
    )
    return [
        _make_finding(
            syncs,
            slow_rank,
            {name: float(values[slow_rank.column]) for name, values in scores.items()},
            hook_delays,
        )
        for slow_rank in slow_ranks
    ]


def _compute_certain_delays(syncs: GradientSyncs) -> dict[str, Floats]:
    """Return each rank's delay by span, summed over that span and all spans that more certainly are
    own work.

    A rank that waits in one span for a rank that is slow in another is behind in the first and
    ahead in the second. So its lead in certain work is subtracted from a delay that may be waiting.
    """
    own_spans = [span for span in syncs.local if span not in MAY_WAIT]
    certain_work = syncs.sum_spans(own_spans)
    delays = dict.fromkeys(own_spans, subtract_median_of_others(certain_work))
    for span in (span for span in MAY_WAIT if span in syncs.local):
        certain_work = certain_work + syncs.local[span]
        delays[span] = subtract_median_of_others(certain_work)
    return delays


def _find_sustained(
    syncs: GradientSyncs, delays: dict[str, Floats], certain_delays: dict[str, Floats]
) -> Iterator[_SlowRank]:
    """Yield each rank that is slow for long, either in one span or slightly in all of its own
    work."""
    tests = 2 * len(syncs.ranks) * (len(delays) + 1)
    n_errors = compute_significance_threshold(tests, len(compute_block_medians(syncs.step)))
    levels = {span: np.median(seconds, axis=0) for span, seconds in delays.items()}
    own_spans = [span for span in delays if span not in MAY_WAIT]
    trusted_blocks = {
        span: compute_block_medians(certain_delays[span])
        for span in (*own_spans[:1], *(span for span in MAY_WAIT if span in delays))
    }
    slow_ranks: dict[int, _SlowRank] = {}
    for spans in [[span] for span in delays] + [own_spans] * (len(own_spans) > 1):
        # Times have long tails, so the median of a sum exceeds the sum of the medians.
        blocks = compute_block_medians(
            delays[spans[0]]
            if len(spans) == 1
            else subtract_median_of_others(syncs.sum_spans(spans))
        )
        certain_work = trusted_blocks[spans[0] if spans[0] in MAY_WAIT else own_spans[0]]
        for column, pattern in _find_slow_ranks(syncs, n_errors, blocks, certain_work):
            span = max(spans, key=lambda name: float(levels[name][column]))
            slow_rank = _SlowRank(pattern, column, span, float(np.mean(blocks[:, column])), {})
            if slow_rank.delay_s >= MIN_SHARE / 2 * syncs.step_s and (
                column not in slow_ranks or slow_rank.delay_s > slow_ranks[column].delay_s
            ):
                slow_ranks[column] = slow_rank
    yield from slow_ranks.values()


def _find_slow_ranks(
    syncs: GradientSyncs, n_errors: float, blocks: Floats, certain_delays: Floats
) -> Iterator[tuple[int, str]]:
    """Yield the column and the pattern of each rank that is slow for long, from its delays per
    block.

    A delay is significant if it exceeds `n_errors` times its standard error.
    """
    level = np.median(blocks, axis=0)
    quarter = max(1, len(blocks) // 4)
    last = np.median(blocks[-quarter:], axis=0)
    change = last - np.median(blocks[:quarter], axis=0)
    # A delay must also be larger than the differences between other ranks.
    least_s, spread = (
        MIN_SHARE * syncs.step_s,
        4 * estimate_lower_spread(level) if len(syncs.ranks) > 3 else -np.inf,
    )
    is_chronic = (level >= least_s) & (
        level > np.maximum(n_errors * estimate_median_error(blocks), spread)
    )
    # The error comes from neighboring blocks, because the change itself is not noise.
    change_error = 1.25 * estimate_change_error(blocks) * np.sqrt(2 / quarter)
    has_changed = (change > np.maximum(n_errors * change_error, spread)) & (
        np.minimum(change, last) >= least_s
    )
    certain_delay = np.where(
        has_changed, np.median(certain_delays[-quarter:], axis=0), np.median(certain_delays, axis=0)
    )
    current_delay = np.where(has_changed, last, level)
    is_drifting = has_changed & (change > np.maximum(level, current_delay / 2))
    for column in np.flatnonzero((is_chronic | has_changed) & (certain_delay >= current_delay / 2)):
        yield int(column), "drifting" if is_drifting[column] else "chronic"


def _find_stalls(
    syncs: GradientSyncs, delays: dict[str, Floats], certain_delays: dict[str, Floats]
) -> Iterator[_SlowRank]:
    """Yield the rank with the most stalls beyond its usual delay, if it has far more than the
    others."""
    stalls_by_span = {}
    for span, seconds in delays.items():
        excess = _subtract_level(seconds)
        typical = 1.48 * np.median(np.abs(excess), axis=0)
        is_stall = excess > np.maximum(6 * typical, MIN_SHARE * syncs.step_s)
        is_stall &= _subtract_level(certain_delays[span]) >= excess / 2
        is_stall[:N_WARM_UP_SYNCS] = False
        stalls_by_span[span] = np.where(is_stall, excess, 0)
    stalls: Floats = sum(stalls_by_span.values(), start=np.zeros_like(syncs.step))
    lost, longest = stalls.mean(axis=0), stalls.max(axis=0)
    column = int(lost.argmax())
    count = int(np.count_nonzero(stalls[:, column]))
    others_lost, others_longest = (
        MIN_RATIO_TO_OTHERS * np.delete(values, column).max() for values in (lost, longest)
    )
    is_long = longest[column] > max(others_longest, MIN_STALL * syncs.step_s)
    is_frequent = count >= MIN_STALLS and lost[column] > max(
        others_lost, MIN_SHARE / 2 * syncs.step_s
    )
    if lost[column] < MIN_STALLED_SHARE * syncs.step_s or not (is_long or is_frequent):
        return
    span = max(stalls_by_span, key=lambda name: float(stalls_by_span[name][:, column].sum()))
    iteration = int(syncs.iterations[stalls[:, column].argmax()])
    numbers = {"stalls": count, "iteration": iteration, "longest_s": float(longest[column])}
    yield _SlowRank("stalls", column, span, float(lost[column]), numbers)


def _subtract_level(seconds: Floats) -> Floats:
    blocks = compute_block_medians(seconds)
    levels = [
        np.broadcast_to(level, part.shape)
        for level, part in zip(blocks, np.array_split(seconds, len(blocks)), strict=True)
    ]
    excess: Floats = seconds - np.concatenate(levels)
    return excess


def _make_finding(
    syncs: GradientSyncs,
    slow_rank: _SlowRank,
    scores: dict[str, float],
    hook_delays: pd.DataFrame | None,
) -> Finding:
    rank, node = syncs.ranks[slow_rank.column], syncs.nodes[slow_rank.column]
    share = slow_rank.delay_s / syncs.step_s
    hook: Any = (
        hook_delays.index[int(hook_delays[rank].to_numpy().argmax())]
        if slow_rank.span == "hooks_s" and hook_delays is not None and rank in hook_delays
        else None
    )
    numbers = {
        "rank": rank,
        "node": node,
        "span": slow_rank.span,
        "pattern": slow_rank.pattern,
        "lost_s": slow_rank.delay_s,
        "lost_share": share,
        **scores,
        **slow_rank.numbers,
        **({"hook": hook[0], "event": hook[1]} if hook else {}),
    }
    where = f"rank {rank} ({node})" if node else f"rank {rank}"
    what = f"{slow_rank.span} (hook {hook[0]} at {hook[1]})" if hook else slow_rank.span
    return Finding(
        "straggler",
        _describe(syncs, slow_rank, f"{where} {{}} in {what}", share, scores),
        numbers,
        f"stats.query(\"phase == 'train'\").pivot(index='iteration', columns='rank', values='{slow_rank.span}')",
        _ADVICE[slow_rank.span],
        share,
    )


def _describe(
    syncs: GradientSyncs, slow_rank: _SlowRank, where: str, share: float, scores: dict[str, float]
) -> str:
    per = "step" if syncs.has_several_iterations else "iteration"
    if slow_rank.pattern == "stalls":
        count, iteration, longest_s = (
            slow_rank.numbers[name] for name in ("stalls", "iteration", "longest_s")
        )
        times = "once" if count == 1 else f"{count} times"
        does = f"stalled {times}, for up to {units.format_seconds(longest_s)} (at iteration {iteration})"
        return f"{where.format(does)}; it cost {share:.1%} of the time"
    does = "is slow" if slow_rank.pattern == "chronic" else "grows slower"
    return (
        f"{where.format(does)}: {units.format_seconds(slow_rank.delay_s)} per {per} more than the others,"
        f" {share:.1%} of the time; it was the slowest in {scores['slowest_share']:.0%} of the {per}s (score"
        f" {scores['relative_score']:.2f} to the best rank, {scores['individual_score']:.2f} to its own best), and the"
        f" others waited {units.format_seconds(scores['others_wait_s'])} longer than it"
    )


def _compute_scores(syncs: GradientSyncs) -> dict[str, Floats]:
    """Compute each rank's scores as in NVIDIA's Resiliency Extension; 1 is best.

    The relative score compares the rank with the fastest rank, the individual score with its own
    fastest block.
    """
    work = syncs.work
    medians, certain_delay = np.median(work, axis=0), compute_block_medians(work)
    slowest = np.bincount(work.argmax(axis=1), minlength=work.shape[1])
    return {
        "relative_score": np.divide(
            medians.min(), medians, out=np.ones_like(medians), where=medians > 0
        ),
        "individual_score": np.divide(
            certain_delay.min(axis=0),
            certain_delay[-1],
            out=np.ones_like(medians),
            where=certain_delay[-1] > 0,
        ),
        "slowest_share": slowest / len(work),
        "others_wait_s": np.median(-subtract_median_of_others(syncs.wait), axis=0),
    }


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


# The last iterations of a run that is training


@dataclass(frozen=True)
class RankStatus:
    """A rank compared with the others: median times per iteration, or per step of several
    iterations."""

    work_s: float
    """Own work, without waiting for others."""
    wait_s: float
    behind_s: float
    """Own work minus the median of the others' work."""
    span: str
    """Span in which it is furthest behind."""
    slowest: bool
    """True if it is behind by 2% or more, and more than any other rank."""


def compare_ranks(rows: pd.DataFrame) -> dict[int, RankStatus]:
    """Return the status of each rank from training rows; empty for one rank or too few rows."""
    syncs = extract_gradient_syncs(rows) if len(rows) and rows["rank"].nunique() > 1 else None
    if syncs is None or len(syncs.iterations) < MIN_SYNCS:
        return {}
    work, wait = np.median([syncs.work, syncs.wait], axis=1)
    spans = list(syncs.local)
    behind = subtract_median_of_others(work[np.newaxis])[0]
    behind_in = subtract_median_of_others(np.median([syncs.local[span] for span in spans], axis=1))
    last = int(np.argmax(behind))
    return {
        rank: RankStatus(
            float(work[column]),
            float(wait[column]),
            float(behind[column]),
            spans[int(np.argmax(behind_in[:, column]))],
            slowest=column == last and bool(behind[column] >= MIN_SHARE * syncs.step_s),
        )
        for column, rank in enumerate(syncs.ranks)
    }
