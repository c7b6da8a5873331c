"""Stragglers: ranks for which the others wait."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
import pandas as pd

from orchestrator.doctor.finding import Finding
from orchestrator.doctor.gradient_syncs import MAY_WAIT, GradientSyncs
from orchestrator.doctor.robust_statistics import (
    Floats,
    compute_block_medians,
    compute_quarter_medians,
    compute_significance_threshold,
    estimate_deviation,
    estimate_lower_spread,
    estimate_median_error,
    estimate_quarter_change_error,
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
"""Number of first syncs that never count as stalls: they load libraries and allocate buffers."""
_SPREADS = 4
"""A delay must exceed this many times the spread of the other ranks' delays, which differ too."""
_STALL_DEVIATIONS = 6
"""Standard deviations beyond the usual delay from which a delay is a stall."""

Pattern = Literal["chronic", "drifting"]
"""Whether a rank is always slow, or becomes slow."""


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


@dataclass(frozen=True)
class _Comparison:
    """The delays of each rank in each span."""

    syncs: GradientSyncs
    delays: Mapping[str, _Delays]
    """Delays by span."""
    certain_delays: Mapping[str, _Delays]
    """Delays by span, summed over that span and all spans that more certainly are own work."""
    own_work: _Delays
    """Delays in all spans that are own work for certain, together."""

    @classmethod
    def make(cls, syncs: GradientSyncs) -> Self:
        """Compare each rank with the others.

        A rank that waits in one span for a rank that is slow in another is behind in the first and
        ahead in the second. Its lead in certain work is therefore subtracted from a delay that may
        itself be waiting for another rank.
        """
        own_spans = [span for span in syncs.local if span not in MAY_WAIT]
        certain_work = syncs.sum_spans(own_spans)
        # Times have long tails, so the median of a sum exceeds the sum of the medians.
        own_work = _compare(certain_work)
        certain_delays = dict.fromkeys(own_spans, own_work)
        for span in MAY_WAIT:
            if span in syncs.local:
                certain_work = certain_work + syncs.local[span]
                certain_delays[span] = _compare(certain_work)
        delays = {span: _compare(seconds) for span, seconds in syncs.local.items()}
        return cls(syncs, delays, certain_delays, own_work)

    @property
    def own_spans(self) -> list[str]:
        """Spans that are own work for certain."""
        return [span for span in self.delays if span not in MAY_WAIT]


def _compare(seconds: Floats) -> _Delays:
    return _Delays(subtract_median_of_others(seconds))


def find_stragglers(syncs: GradientSyncs, costs: pd.DataFrame | None = None) -> list[Finding]:
    """Return a finding for each rank that delays the others: always, increasingly, or by stalls.

    Each rank's own work is compared with that of the others in the same iteration, so a slowdown of
    all ranks is no finding. The hook `costs` show which hook is slow.
    """
    if len(syncs.ranks) < 2 or len(syncs.iterations) < MIN_SYNCS:
        return []
    comparison = _Comparison.make(syncs)
    slow_ranks = [*_find_sustained(comparison), *_find_stalls(comparison)]
    if not slow_ranks:
        return []
    return make_findings(syncs, slow_ranks, costs)


# Ranks that are persistently slow


def _find_sustained(comparison: _Comparison) -> Iterator[SlowRank]:
    """Yield each rank that is persistently slow, either in one span or slightly in all of its own
    work."""
    syncs = comparison.syncs
    tests = 2 * len(syncs.ranks) * (len(comparison.delays) + 1)
    n_standard_errors = compute_significance_threshold(tests, len(comparison.own_work.levels))

    slowest: dict[int, SlowRank] = {}
    for spans, delays in _list_compared_delays(comparison):
        certain_levels = comparison.certain_delays[spans[0]].levels
        for column, pattern in _find_slow_ranks(
            syncs, n_standard_errors, delays.levels, certain_levels
        ):
            delay_s = float(np.mean(delays.levels[:, column]))
            known_s = slowest[column].delay_s if column in slowest else 0.0
            if delay_s >= MIN_SHARE / 2 * syncs.step_s and delay_s > known_s:
                span = _find_longest_span(comparison, spans, column, pattern)
                slowest[column] = SlowRank(pattern, column, span, delay_s)
    yield from slowest.values()


def _list_compared_delays(comparison: _Comparison) -> Iterator[tuple[list[str], _Delays]]:
    """Yield the delays in each span, and those in all own work together."""
    for span, delays in comparison.delays.items():
        yield [span], delays
    own_spans = comparison.own_spans
    if len(own_spans) > 1:
        yield own_spans, comparison.own_work


def _find_longest_span(
    comparison: _Comparison, spans: Sequence[str], column: int, pattern: Pattern
) -> str:
    """Return the span in which a rank is slowest: over the whole run, or if it drifts, in the last
    quarter."""

    def measure(span: str) -> float:
        delays = comparison.delays[span]
        if pattern == "drifting":
            _, last = compute_quarter_medians(delays.levels)
            return float(last[column])
        return float(np.median(delays.seconds[:, column]))

    return max(spans, key=measure)


def _find_slow_ranks(
    syncs: GradientSyncs, n_standard_errors: float, levels: Floats, certain_levels: Floats
) -> Iterator[tuple[int, Pattern]]:
    """Yield the column and the pattern of each rank that is persistently slow, from its delays per
    block.

    A delay is significant if it exceeds `n_standard_errors` times its standard error.
    """
    level = np.median(levels, axis=0)
    first, last = compute_quarter_medians(levels)
    change = last - first
    spread = _SPREADS * estimate_lower_spread(level) if len(syncs.ranks) > 3 else -np.inf
    min_delay_s = MIN_SHARE * syncs.step_s

    significant = np.maximum(n_standard_errors * estimate_median_error(levels), spread)
    is_chronic = (level >= min_delay_s) & (level > significant)
    change_error = estimate_quarter_change_error(levels)
    significant_change = np.maximum(n_standard_errors * change_error, spread)
    has_changed = (change > significant_change) & (np.minimum(change, last) >= min_delay_s)

    current_delay = np.where(has_changed, last, level)
    _, certain_last = compute_quarter_medians(certain_levels)
    certain_delay = np.where(has_changed, certain_last, np.median(certain_levels, axis=0))
    is_own = certain_delay >= current_delay / 2
    is_drifting = has_changed & (change > np.maximum(level, current_delay / 2))
    for column in np.flatnonzero((is_chronic | has_changed) & is_own):
        yield int(column), "drifting" if is_drifting[column] else "chronic"


# Stalls


def _find_stalls(comparison: _Comparison) -> Iterator[SlowRank]:
    """Yield the rank with the most stalls beyond its usual delay, if it has far more than the
    others."""
    syncs = comparison.syncs
    stalls_by_span = _find_stalls_by_span(comparison)
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
        own_stalls = Stalls(count, iteration, float(longest[column]))
        yield SlowRank("stalls", column, span, float(lost[column]), own_stalls)


def _find_stalls_by_span(comparison: _Comparison) -> dict[str, Floats]:
    """Return the seconds of each stall by span, and 0 elsewhere."""
    min_stall_s = MIN_SHARE * comparison.syncs.step_s
    stalls = {}
    for span, delays in comparison.delays.items():
        excess = delays.excess
        unusual_s = _STALL_DEVIATIONS * estimate_deviation(excess)
        is_stall = excess > np.maximum(unusual_s, min_stall_s)
        is_stall &= comparison.certain_delays[span].excess >= excess / 2
        is_stall[:N_WARM_UP_SYNCS] = False
        stalls[span] = np.where(is_stall, excess, 0)
    return stalls
