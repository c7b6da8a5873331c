"""A race of configurations over seeds: which trial begins next, and which configurations are left as they will not win. Driver; needs no Ray.

All are trained with the first seed to their end, as curves may cross. From then on seed follows seed, the best so far first, and a
configuration is left when it is too unlikely that its mean over all seeds will pass that of the leader. Trials with the same seed see the
same samples in the same order, so their differences are paired. With n pairs of R, whose mean is d and whose variance is v, the mean over
all R is predicted as in stochastic curtailment (Lan, Simon and Halperin 1982): the leader falls behind with the probability that
Student's t is above d * sqrt(n * R / ((R - n) * v)). The variance is the larger of that of the pairs themselves and of what is left of
all configurations at least as good when the means of configurations and seeds are taken off. Each of C configurations may be left
with a probability up to level / (C - 1), so that whichever would have won is left with no more than `level`, as far as differences between seeds are normal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from statistics import fmean, variance
from typing import Any

from orchestrator.config.space import count_trials
from orchestrator.config.sweep import Race as RaceSettings
from orchestrator.config.sweep import Sweep
from orchestrator.records.run_folder import RunFolder, now
from orchestrator.stats.student_t import tail
from orchestrator.storage.stored_data import append_line, read_lines
from orchestrator.sweeps.results.previous_trials import PreviousTrial

FILE = "race.jsonl"
_BELIEVED = 4
"""Degrees of freedom from which on no difference between seeds at all is no accident of a metric in coarse steps."""
_ROUNDING = 1e-12
"""What float64 may leave of the difference of equal sums, relative to them: some thousand times its precision."""


@dataclass(frozen=True)
class Left:
    """A configuration that was left."""

    configuration: int
    leader: int
    seeds: int
    """Pairs there were."""
    behind: float
    """By how much its mean over these was worse."""
    probability: float
    """That it would have passed the leader with all seeds."""
    time: str = ""

    def __str__(self) -> str:
        return (
            f"configuration {self.configuration} will not win: {self.behind:.4g} behind configuration {self.leader} over {self.seeds} "
            f"seed{'s' if self.seeds > 1 else ''}, which it would make up with a probability of {self.probability:.2g}"
        )


class RaceLog:
    """Which configurations a sweep has left, in a file of its own as it happens. Driver."""

    def __init__(self, sweep: RunFolder) -> None:
        self._storage = sweep.storage

    def append(self, left: Left) -> None:
        """Adds one."""
        append_line(self._storage, FILE, {**asdict(left), "time": now()})

    def read(self) -> list[Left]:
        """All of them, the first first."""
        return read_lines(self._storage, FILE, Left)


class Race:
    """Hears of each trial when it reports and ends, and says which one begins next.

    `leaves` hears of each configuration that is left, `expects` how many trials there are to be. Where `is_over` says that the whole sweep ends,
    a trial that ends says nothing of its configuration.
    """

    def __init__(
        self,
        settings: Sweep,
        previous: Mapping[int, PreviousTrial],
        left: Sequence[Left] = (),
        *,
        leaves: Callable[[Left], None] = lambda left: None,
        expects: Callable[[int], None] = lambda trials: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        assert isinstance(settings.scheduler, RaceSettings)
        self._repeats, self._count = settings.repeats, count_trials(settings) // settings.repeats
        self._level = settings.scheduler.level / max(1, self._count - 1)
        metric, mode = settings.objectives[0]
        self._metric, self._sign = metric, 1 if mode == "max" else -1
        self._leaves, self._expects, self._is_over = leaves, expects, is_over
        self.left = {one.configuration: one for one in left}
        self._reached: dict[int, float] = {}
        """The best of each trial so far, more is better."""
        self._seeds: defaultdict[int, dict[int, float]] = defaultdict(dict)
        """Configuration to what it reached with each seed that is through."""
        self._failed: defaultdict[int, set[int]] = defaultdict(set)
        self._begun: set[int] = set()
        self._again = [number for number, trial in sorted(previous.items()) if not trial.over]
        for number, trial in previous.items():
            for report in trial.reports:
                self.reported(number, report)
            if trial.over and trial.begun:
                self._begun.add(number)
                self._count_end(number, failed=trial.failed)
        self._expected = self._to_begin = 0
        self._expect()

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: it belongs to the living driver, and Tune's saved state of the search leaves it out."""
        return {}

    @property
    def most(self) -> int:
        """How many trials there may be yet, with those begun, as far as is known by now."""
        return len(self._begun.union(*map(self._trials_of, self._contenders())))

    def next_trial(self) -> int | None:
        """The trial that begins now; None where it takes others that are under way to tell, or all is told."""
        chosen = self._again.pop(0) if self._again else self._next()
        if chosen is not None:
            self._begun.add(chosen)
        return chosen

    @property
    def is_through(self) -> bool:
        """Whether no trial is under way, so that what does not begin now never does."""
        return not self._under_way()

    def reported(self, number: int, report: Mapping[str, Any]) -> None:
        """A trial has reported."""
        value = self._sign * report[self._metric]
        if math.isfinite(value):
            self._reached[number] = max(value, self._reached.get(number, value))

    def ended(self, number: int, *, failed: bool) -> None:
        """A trial is over; those that will not win are left."""
        if self._is_over():
            return
        self._count_end(number, failed=failed)
        for left in self._that_will_not_win():
            self.left[left.configuration] = left
            self._leaves(left)
        self._expect()

    def _expect(self) -> None:
        """Says how many trials there are to be where that is another number than before."""
        if self.most != self._expected:
            self._expected = self.most
            self._expects(self._expected)

    def reason_to_stop(self, number: int) -> str | None:
        """Why a trial that is under way is not worth its end."""
        left = self.left.get(number // self._repeats)
        return str(left) if left else None

    def _count_end(self, number: int, *, failed: bool) -> None:
        configuration, seed = divmod(number, self._repeats)
        if failed or number not in self._reached:
            self._failed[configuration].add(seed)
        else:
            self._seeds[configuration][seed] = self._reached[number]

    # Which begins

    def _next(self) -> int | None:
        contenders = self._contenders()
        to_come = {one: next((number for number in self._trials_of(one) if number not in self._begun), None) for one in contenders}
        seeds = {one: number % self._repeats for one, number in to_come.items() if number is not None}
        if not seeds:
            return None
        seed, under_way = min(seeds.values()), [number for number in self._under_way() if number // self._repeats in contenders]
        if not under_way:
            # Half of them, so that the worse half is judged by the better one before it begins.
            self._to_begin = math.ceil(len(contenders) / 2)
        if seed and (any(number % self._repeats < seed for number in under_way) or not self._to_begin):
            return None
        self._to_begin = max(0, self._to_begin - 1)
        return to_come[min((one for one in seeds if seeds[one] == seed), key=lambda one: (-self._mean(one), one))]

    def _contenders(self) -> list[int]:
        """Those not left; one of which more trials failed than of another cannot be the best."""
        there = [one for one in range(self._count) if one not in self.left]
        fewest = min((len(self._failed[one]) for one in there), default=0)
        return [one for one in there if len(self._failed[one]) == fewest]

    def _trials_of(self, configuration: int) -> range:
        return range(configuration * self._repeats, (configuration + 1) * self._repeats)

    def _under_way(self) -> list[int]:
        through = ((number, *divmod(number, self._repeats)) for number in self._begun)
        return [number for number, one, seed in through if seed not in self._seeds[one] and seed not in self._failed[one]]

    def _mean(self, configuration: int) -> float:
        return fmean(self._seeds[configuration].values()) if self._seeds[configuration] else -math.inf

    # Which is left

    def _that_will_not_win(self) -> Iterator[Left]:
        known = [one for one in self._contenders() if self._seeds[one]]
        shared = set[int]().union(*(self._seeds[one] for one in known)).intersection(*(self._seeds[one] for one in known))
        if not shared:
            return
        mean = {one: fmean(self._seeds[one][seed] for seed in shared) for one in known}
        leader, *others = ordered = sorted(known, key=lambda one: -mean[one])
        for place, other in enumerate(others, 2):
            pairs = [self._seeds[leader][seed] - self._seeds[other][seed] for seed in self._seeds[leader].keys() & self._seeds[other].keys()]
            probability = self._probability(pairs, ordered[:place])
            if probability is not None and probability <= self._level:
                yield Left(other, leader, len(pairs), fmean(pairs), probability)

    def _probability(self, pairs: Sequence[float], among: Sequence[int]) -> float | None:
        """That the mean over all seeds is against the leader; None where there is nothing to tell from, or to save."""
        behind, to_come = fmean(pairs), self._repeats - len(pairs)
        spread, freedom = max((self._noise(among, self._seeds[one].keys()) for one in among), key=lambda noise: noise[1])
        if behind <= 0 or not to_come or not freedom:
            return None
        spread = max(spread, variance(pairs)) if len(pairs) > 1 else spread
        if not spread:
            return 0.0 if freedom >= _BELIEVED else None
        return tail(behind * math.sqrt(len(pairs) * self._repeats / (to_come * spread)), freedom)

    def _noise(self, among: Sequence[int], seeds: AbstractSet[int]) -> tuple[float, int]:
        """The variance of a difference between two configurations from seed to seed, by those of some that are through with all of these
        seeds, and its degrees of freedom."""
        rows = [[self._seeds[one][seed] for seed in seeds] for one in among if seeds <= self._seeds[one].keys()]
        freedom = (len(rows) - 1) * (len(seeds) - 1)
        if freedom < 1:
            return 0.0, 0
        whole, columns = fmean(map(fmean, rows)), [fmean(column) for column in zip(*rows, strict=True)]
        rest = sum((value - fmean(row) - column + whole) ** 2 for row in rows for value, column in zip(row, columns, strict=True))
        is_rounding = rest <= _ROUNDING**2 * len(rows) * whole**2
        return (0.0 if is_rounding else 2 * rest / freedom), freedom
