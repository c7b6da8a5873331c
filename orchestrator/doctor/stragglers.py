"""Stragglers: ranks for which the others wait."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from orchestrator.doctor.finding import Finding
from orchestrator.doctor.gradient_syncs import MAY_WAIT, GradientSyncs
from orchestrator.doctor.robust_statistics import (
    Floats,
    compute_block_medians,
    compute_significance_threshold,
    estimate_change_error,
    estimate_lower_spread,
    estimate_median_error,
    subtract_median_of_others,
)
from orchestrator.doctor.straggler_findings import SlowRank, Stalls, make_findings

MIN_SHARE = 0.02
"""Smallest delay that is a finding, as a share of an iteration. The mean over the run may be half
of it."""
MIN_STALL = 3.0
"""Smallest length of a long stall, in iterations."""
MIN_STALLED_SHARE = 0.005
"""Smallest share of the run's time that all stalls take."""
MIN_STALLS = 5
"""Number of short stalls from which they are a finding."""
MIN_RATIO_TO_OTHERS = 4.0
"""Ratio of a straggler's stalls to those of any other rank, because every rank stalls at times."""
MIN_SYNCS = 16
"""Smallest number of syncs for a finding."""
N_WARM_UP_SYNCS = 2
"""Number of first syncs that are never stalls: they load libraries and allocate buffers."""


@dataclass(frozen=True)
class _Delays:
    """Seconds that each rank took longer than the others, of shape (syncs, ranks)."""

    seconds: Floats

    @cached_property
    def levels(self) -> Floats:
        """Medians of blocks."""
        return compute_block_medians(self.seconds)

    @cached_property
    def excess(self) -> Floats:
        """Seconds beyond the median of the block."""
        blocks = np.array_split(self.seconds, len(self.levels))
        excesses = [block - level for block, level in zip(blocks, self.levels, strict=True)]
        return np.concatenate(excesses)


def find_stragglers(syncs: GradientSyncs, costs: pd.DataFrame | None = None) -> list[Finding]:
    """Return a finding for each rank that delays the others: always, increasingly, or by stalls.

    Each rank's own work is compared with that of the others in the same iteration, so a slowdown of
    all ranks is no finding. The hook `costs` show which hook is slow.
    """
    if len(syncs.ranks) < 2 or len(syncs.iterations) < MIN_SYNCS:
        return []
    delays = {span: _compare(seconds) for span, seconds in syncs.local.items()}
    certain_delays = _compute_certain_delays(syncs)
    slow_ranks = [
        *_find_sustained(syncs, delays, certain_delays),
        *_find_stalls(syncs, delays, certain_delays),
    ]
    if not slow_ranks:
        return []
    return make_findings(syncs, slow_ranks, costs)


def _compare(seconds: Floats) -> _Delays:
    return _Delays(subtract_median_of_others(seconds))


def _compute_certain_delays(syncs: GradientSyncs) -> dict[str, _Delays]:
    """Return each rank's delay by span, summed over that span and all spans that more certainly are
    own work.

    A rank that waits in one span for a rank that is slow in another is behind in the first and
    ahead in the second. So its lead in certain work is subtracted from a delay that may be waiting.
    """
    own_spans = [span for span in syncs.local if span not in MAY_WAIT]
    certain_work = syncs.sum_spans(own_spans)
    delays = dict.fromkeys(own_spans, _compare(certain_work))
    for span in MAY_WAIT:
        if span in syncs.local:
            certain_work = certain_work + syncs.local[span]
            delays[span] = _compare(certain_work)
    return delays


def _find_sustained(
    syncs: GradientSyncs, delays: dict[str, _Delays], certain_delays: dict[str, _Delays]
) -> Iterator[SlowRank]:
    """Yield each rank that is slow for long, either in one span or slightly in all of its own
    work."""
    tests = 2 * len(syncs.ranks) * (len(delays) + 1)
    n_errors = compute_significance_threshold(tests, len(compute_block_medians(syncs.step)))
    levels = {span: np.median(delay.seconds, axis=0) for span, delay in delays.items()}
    own_spans = [span for span in delays if span not in MAY_WAIT]

    slowest: dict[int, SlowRank] = {}
    for spans, compared in _list_compared_delays(syncs, delays, own_spans):
        trusted_span = spans[0] if spans[0] in MAY_WAIT else own_spans[0]
        trusted_levels = certain_delays[trusted_span].levels
        for column, pattern in _find_slow_ranks(syncs, n_errors, compared.levels, trusted_levels):
            delay_s = float(np.mean(compared.levels[:, column]))
            known_s = slowest[column].delay_s if column in slowest else 0.0
            if delay_s >= MIN_SHARE / 2 * syncs.step_s and delay_s > known_s:
                own_levels = {span: float(levels[span][column]) for span in spans}
                longest_span = max(own_levels, key=own_levels.__getitem__)
                slowest[column] = SlowRank(pattern, column, longest_span, delay_s)
    yield from slowest.values()


def _list_compared_delays(
    syncs: GradientSyncs, delays: dict[str, _Delays], own_spans: list[str]
) -> Iterator[tuple[list[str], _Delays]]:
    """Yield the delays in each span, and those in all own work together."""
    for span, delay in delays.items():
        yield [span], delay
    if len(own_spans) > 1:
        # Times have long tails, so the median of a sum exceeds the sum of the medians.
        yield own_spans, _compare(syncs.sum_spans(own_spans))


def _find_slow_ranks(
    syncs: GradientSyncs, n_errors: float, blocks: Floats, certain_delays: Floats
) -> Iterator[tuple[int, Literal["chronic", "drifting"]]]:
    """Yield the column and the pattern of each rank that is slow for long, from its delays per
    block.

    A delay is significant if it exceeds `n_errors` times its standard error.
    """
    level = np.median(blocks, axis=0)
    quarter = max(1, len(blocks) // 4)
    last = np.median(blocks[-quarter:], axis=0)
    change = last - np.median(blocks[:quarter], axis=0)
    least_s = MIN_SHARE * syncs.step_s
    # A delay must also be larger than the differences between other ranks.
    spread = 4 * estimate_lower_spread(level) if len(syncs.ranks) > 3 else -np.inf

    significant = np.maximum(n_errors * estimate_median_error(blocks), spread)
    is_chronic = (level >= least_s) & (level > significant)
    # The error comes from neighboring blocks, because the change itself is not noise.
    change_error = 1.25 * estimate_change_error(blocks) * np.sqrt(2 / quarter)
    significant_change = np.maximum(n_errors * change_error, spread)
    has_changed = (change > significant_change) & (np.minimum(change, last) >= least_s)

    current_delay = np.where(has_changed, last, level)
    last_certain_delay = np.median(certain_delays[-quarter:], axis=0)
    certain_delay = np.where(has_changed, last_certain_delay, np.median(certain_delays, axis=0))
    is_own = certain_delay >= current_delay / 2
    is_drifting = has_changed & (change > np.maximum(level, current_delay / 2))
    for column in np.flatnonzero((is_chronic | has_changed) & is_own):
        yield int(column), "drifting" if is_drifting[column] else "chronic"


def _find_stalls(
    syncs: GradientSyncs, delays: dict[str, _Delays], certain_delays: dict[str, _Delays]
) -> Iterator[SlowRank]:
    """Yield the rank with the most stalls beyond its usual delay, if it has far more than the
    others."""
    stalls_by_span = _find_stalls_by_span(syncs, delays, certain_delays)
    stalls: Floats = sum(stalls_by_span.values(), start=np.zeros_like(syncs.step))
    lost = stalls.mean(axis=0)
    longest = stalls.max(axis=0)
    column = int(lost.argmax())
    count = int(np.count_nonzero(stalls[:, column]))
    if lost[column] < MIN_STALLED_SHARE * syncs.step_s:
        return

    most_of_others = MIN_RATIO_TO_OTHERS * np.delete(lost, column).max()
    longest_of_others = MIN_RATIO_TO_OTHERS * np.delete(longest, column).max()
    is_long = longest[column] > max(longest_of_others, MIN_STALL * syncs.step_s)
    is_costly = lost[column] > max(most_of_others, MIN_SHARE / 2 * syncs.step_s)
    if is_long or (is_costly and count >= MIN_STALLS):
        span = max(stalls_by_span, key=lambda name: float(stalls_by_span[name][:, column].sum()))
        iteration = int(syncs.iterations[stalls[:, column].argmax()])
        of_rank = Stalls(count, iteration, float(longest[column]))
        yield SlowRank("stalls", column, span, float(lost[column]), of_rank)


def _find_stalls_by_span(
    syncs: GradientSyncs, delays: dict[str, _Delays], certain_delays: dict[str, _Delays]
) -> dict[str, Floats]:
    """Return the seconds of each stall by span, and 0 elsewhere."""
    stalls = {}
    for span, delay in delays.items():
        excess = delay.excess
        typical = 1.48 * np.median(np.abs(excess), axis=0)
        is_stall = excess > np.maximum(6 * typical, MIN_SHARE * syncs.step_s)
        is_stall &= certain_delays[span].excess >= excess / 2
        is_stall[:N_WARM_UP_SYNCS] = False
        stalls[span] = np.where(is_stall, excess, 0)
    return stalls
