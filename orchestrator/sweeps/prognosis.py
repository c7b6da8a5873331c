"""What configurations will have reached when all their seeds are through, as far as those that are there tell. Needs no
Ray.

Of n values of R, whose mean is m and whose variance is v, the mean over all R is predicted as in stochastic curtailment
(Lan, Simon and Halperin 1982): it is m, with the variance v (R - n) / (R n). The variance between seeds is pooled over
all configurations that are compared, or a configuration's own where that is larger. Where seeds are good or bad for
all, differences between trials with the same seed tell more: their variance is what is left when the means of
configurations and of seeds are taken off, and both ways are asked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from orchestrator.stats.aggregate.student_t import tail

Curve = Sequence[float]
"""The best so far after each report, more is better."""

_BELIEVED = 4
"""Degrees of freedom from which on pairs are asked, and no difference between seeds at all is no accident of a metric
in coarse steps."""
_ROUNDING = 1e-12
"""What float64 may leave of the difference of equal sums, relative to them: some thousand times its precision."""


class Predicted(NamedTuple):
    """A configuration's mean over all seeds."""

    seeds: int
    """Of how many it is told."""
    mean: float
    variance: float


class Prognosis:
    """Of configurations of which one trial or more is `through`; by configuration and seed, as are those
    `under_way`."""

    def __init__(
        self, repeats: int, through: Mapping[int, Mapping[int, Curve]], under_way: Mapping[int, Mapping[int, Curve]]
    ) -> None:
        self._repeats, self._through, self._under_way = repeats, through, under_way
        self._reached = {one: {seed: curve[-1] for seed, curve in own.items()} for one, own in through.items()}
        self._spread, self._freedom = _within(own.values() for own in self._reached.values())
        blocks = (self._of_pairs(seeds) for seeds in {frozenset(own) for own in self._reached.values()})
        self._pair_spread, self._pair_freedom = max(blocks, key=lambda spread: spread[1], default=(0.0, 0))
        self.predicted = {one: self._predicted(one) for one in through}

    def passes(self, one: int, leader: int) -> float:
        """How likely the mean of one over all seeds will be above that of the leader, by what tells more."""
        own, other = self.predicted[one], self.predicted[leader]
        chance = _chance(other.mean - own.mean, own.variance + other.variance, self._freedom)
        pairs = [
            self._reached[leader][seed] - self._reached[one][seed]
            for seed in self._reached[one].keys() & self._reached[leader].keys()
        ]
        if not pairs or self._pair_freedom < _BELIEVED:
            return chance
        return min(
            chance,
            _chance(
                fmean(pairs), self._to_come(max(self._pair_spread, _within([pairs])[0]), len(pairs)), self._pair_freedom
            ),
        )

    def _predicted(self, one: int) -> Predicted:
        """By the trials that are through, and by those under way too where that tells more."""
        reached = [*self._reached[one].values()]
        spread = max(self._spread, _within([reached])[0])
        known = Predicted(len(reached), fmean(reached), self._to_come(spread, len(reached)))
        ends = [end for curve in self._under_way.get(one, {}).values() if (end := self._end(one, curve))]
        if not ends:
            return known
        seeds = len(reached) + len(ends)
        # The gains that are expected are of the same trials, so that their errors are one.
        error = sum(variance for _, variance in ends) + sum(math.sqrt(variance) for _, variance in ends) ** 2 / len(
            reached
        )
        mean = fmean([*reached, *(end for end, _ in ends)])
        return min(
            known,
            Predicted(seeds, mean, self._to_come(spread, seeds) + error / seeds**2),
            key=lambda told: told.variance,
        )

    def _end(self, one: int, curve: Curve) -> tuple[float, float] | None:
        """Where a trial under way will end by what others of its configuration gained from there on, and how that
        varies between seeds."""
        gains = {
            other: [through[-1] - through[min(len(curve), len(through)) - 1] for through in own.values()]
            for other, own in self._through.items()
        }
        spread, freedom = _within(gained for gained in gains.values() if all(map(math.isfinite, gained)))
        if not all(map(math.isfinite, [curve[-1], *gains[one]])) or freedom < (1 if spread else _BELIEVED):
            return None
        return curve[-1] + fmean(gains[one]), max(spread, _within([gains[one]])[0])

    def _to_come(self, spread: float, seeds: int) -> float:
        return spread * (self._repeats - seeds) / (self._repeats * seeds)

    def _of_pairs(self, seeds: Collection[int]) -> tuple[float, int]:
        """The variance of a difference between two configurations from seed to seed, by those that are through with all
        of these seeds, and its degrees of freedom."""
        rows = [[own[seed] for seed in seeds] for own in self._reached.values() if own.keys() >= {*seeds}]
        columns = [fmean(column) for column in zip(*rows, strict=True)]
        left, _ = _within([value - mean for value, mean in zip(row, columns, strict=True)] for row in rows)
        # As many degrees of freedom less as means of seeds were taken off.
        return (
            (2 * left * len(rows) / (len(rows) - 1), (len(rows) - 1) * (len(seeds) - 1)) if len(rows) > 1 else (0.0, 0)
        )


def _within(groups: Iterable[Collection[float]]) -> tuple[float, int]:
    """The variance around the mean of each group, and its degrees of freedom; what is left of sums that are equal is
    none."""
    squares = largest = 0.0
    freedom = 0
    for group in groups:
        mean = fmean(group)
        squares += sum((value - mean) ** 2 for value in group)
        largest, freedom = max(largest, *map(abs, group)), freedom + len(group) - 1
    return (squares / freedom if freedom and squares > (_ROUNDING * largest) ** 2 else 0.0), freedom


def _chance(ahead: float, variance: float, freedom: int) -> float:
    """That what is `ahead` by now will not be."""
    if ahead <= 0 or not freedom:
        return 1.0
    if not variance:
        return 0.0 if freedom >= _BELIEVED else 1.0
    return tail(ahead / math.sqrt(variance), freedom)
