"""A race of configurations over seeds: which trial begins next, and which configurations are left as they will not win.
Driver; needs no Ray.

All are trained with the first seed to their end, as curves may cross. Then the best so far goes on with the seeds it
has not had, and the others seed by seed. A configuration is left when it is too unlikely that its mean over all seeds
will pass that of the leader, the one with the best mean to be expected; from its second trial on that is asked at each
report. Each of C configurations may be left with a probability up to level / (C - 1), so that whichever would have won
is left with no more than `level`, as far as differences between seeds are normal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from orchestrator.config.checks.space import count_trials
from orchestrator.config.sections.sweep import Race as RaceSettings
from orchestrator.config.sections.sweep import Sweep
from orchestrator.records.run_folder import RunFolder, now
from orchestrator.storage.stored_data import append_line, read_lines
from orchestrator.sweeps.prognosis import Prognosis
from orchestrator.sweeps.results.previous_trials import PreviousTrial

FILE = "race.jsonl"


@dataclass(frozen=True)
class Left:
    """A configuration that was left."""

    configuration: int
    leader: int
    seeds: int
    """Of how many of its trials that was told, with those under way."""
    behind: float
    """By how much its mean was worse, as far as it could be told."""
    probability: float
    """That it would have passed the leader with all seeds."""
    time: str = ""

    def __str__(self) -> str:
        return (
            f"configuration {self.configuration} will not win: {self.behind:.4g} behind configuration {self.leader}"
            f" over {self.seeds} seed{'s' if self.seeds > 1 else ''}, which it would make up with a probability of"
            f" {self.probability:.2g}"
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

    `leaves` hears of each configuration that is left, `expects` how many trials there are to be. Where `is_over` says
    that the whole sweep ends, a trial that ends says nothing of its configuration.
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
        self._curves: defaultdict[int, list[float]] = defaultdict(list)
        """The best of each trial after each of its reports, more is better."""
        self._through: defaultdict[int, dict[int, list[float]]] = defaultdict(dict)
        """Configuration to these of each seed that is through."""
        self._failed: defaultdict[int, set[int]] = defaultdict(set)
        self._begun: set[int] = set()
        begun = (number for number, trial in sorted(previous.items()) if not trial.over)
        self._again = [
            number for number in begun if not (previous[number].failed and number // self._repeats in self.left)
        ]
        for number, trial in previous.items():
            for report in trial.reports:
                self._keep(number, report)
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

    @property
    def has_more(self) -> bool:
        """Whether a trial is yet to begin, or to go on."""
        return bool(self._again) or self.most > len(self._begun)

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
        """A trial has reported; those that will not win are left. Where none of its configuration is through nothing is
        told from how it begins, and from its last report when it has ended."""
        self._keep(number, report)
        through = self._through[number // self._repeats].values()
        if len(self._curves[number]) < max(map(len, through), default=0) and not self._is_over():
            self._leave()

    def ended(self, number: int, *, failed: bool) -> None:
        """A trial is over; those that will not win are left."""
        if self._is_over():
            return
        self._count_end(number, failed=failed)
        self._leave()
        self._expect()

    def _keep(self, number: int, report: Mapping[str, Any]) -> None:
        value, curve = self._sign * report[self._metric], self._curves[number]
        if report.get("training_iteration", len(curve) + 1) <= len(curve):
            return  # made again, after its rank or process was replaced
        best = curve[-1] if curve else -math.inf
        curve.append(max(best, value) if math.isfinite(value) else best)

    def _leave(self) -> None:
        for left in self._that_will_not_win():
            self.left[left.configuration] = left
            self._leaves(left)

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
        curve = self._curves[number]
        if failed or not curve or math.isinf(curve[-1]):
            self._failed[configuration].add(seed)
        else:
            self._through[configuration][seed] = curve

    # Which begins

    def _next(self) -> int | None:
        contenders = self._contenders()
        seeds: dict[int, int] = {
            one: min(to_come) % self._repeats
            for one in contenders
            if (to_come := {*self._trials_of(one)} - self._begun)
        }
        if not seeds:
            return None
        under_way = [number % self._repeats for number in self._under_way() if number // self._repeats in contenders]
        seed, best_first = min(seeds.values()), sorted(seeds, key=lambda one: (-self._mean(one), one))
        if seed and 0 in under_way:
            return None
        leader = max(contenders, key=lambda one: (self._mean(one), -one))
        if seed and leader in seeds:
            return self._trials_of(leader)[seeds[leader]]
        if not under_way:
            # Half of them, so that the worse half is judged by the better one before it begins.
            self._to_begin = math.ceil(len(contenders) / 2)
        if seed and (any(earlier < seed for earlier in under_way) or not self._to_begin):
            return None
        self._to_begin = max(0, self._to_begin - 1)
        return self._trials_of(next(one for one in best_first if seeds[one] == seed))[seed]

    def _contenders(self) -> list[int]:
        """Those not left; one of which more trials failed than of another cannot be the best."""
        there = [one for one in range(self._count) if one not in self.left]
        fewest = min((len(self._failed[one]) for one in there), default=0)
        return [one for one in there if len(self._failed[one]) == fewest]

    def _trials_of(self, configuration: int) -> range:
        return range(configuration * self._repeats, (configuration + 1) * self._repeats)

    def _under_way(self) -> list[int]:
        through = ((number, *divmod(number, self._repeats)) for number in self._begun)
        return [
            number for number, one, seed in through if seed not in self._through[one] and seed not in self._failed[one]
        ]

    def _mean(self, configuration: int) -> float:
        through = self._through[configuration].values()
        return fmean(curve[-1] for curve in through) if through else -math.inf

    # Which is left

    def _that_will_not_win(self) -> Iterator[Left]:
        through = {one: self._through[one] for one in self._contenders() if self._through[one]}
        under_way: defaultdict[int, dict[int, list[float]]] = defaultdict(dict)
        for number in self._under_way():
            if curve := self._curves[number]:
                under_way[number // self._repeats][number % self._repeats] = curve
        if not through:
            return
        told = Prognosis(self._repeats, through, under_way)
        leader = max(through, key=lambda one: told.predicted[one].mean)
        for other in through:
            if other == leader or len(through[other]) == self._repeats:
                continue
            probability = told.passes(other, leader)
            if probability <= self._level:
                own = told.predicted[other]
                yield Left(other, leader, own.seeds, told.predicted[leader].mean - own.mean, probability)
