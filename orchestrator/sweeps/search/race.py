"""`scheduler: race`: compares configurations seed by seed and eliminates those that will not win. Driver; needs no Ray.

All configurations train with the first seed to the end, since curves may cross. Then the leader trains with its other
seeds, and the others follow seed by seed, the best first. A configuration is eliminated when its mean over all seeds
is too unlikely to pass the leader's; the leader is the one with the best predicted mean.

Each of C configurations may be eliminated with a probability of up to level / (C - 1). So the one that would have won
is eliminated with a probability of at most `level`, as far as differences between seeds are normal.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from orchestrator.config.checks.space import count_trials
from orchestrator.config.sections.sweep import Race as RaceSettings
from orchestrator.config.sections.sweep import Sweep
from orchestrator.stats.aggregate.student_t import tail
from orchestrator.sweeps.results.previous_trials import PreviousTrial, remaining_trials
from orchestrator.sweeps.search.sampling import draw_trials
from orchestrator.sweeps.search.search import Search, TrialConfig, trial_config

Curve = Sequence[float]
"""The best value so far after each report; more is better."""
Curves = Mapping[int, Mapping[int, Curve]]
"""By configuration and seed."""

_MIN_FREEDOM = 4
"""Degrees of freedom from which pairs count, and from which no difference between seeds at all is no accident."""


class Race(Search):
    """Decides which trial begins next, and stops the trials of eliminated configurations.

    A configuration of which more trials failed than of another is no contender.
    """

    def __init__(
        self,
        settings: Sweep,
        seed: int,
        previous: Mapping[int, PreviousTrial],
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(settings)
        assert isinstance(settings.scheduler, RaceSettings)
        self._repeats, self._configurations = settings.repeats, count_trials(settings) // settings.repeats
        self._level = settings.scheduler.level / max(1, self._configurations - 1)
        (self._metric, mode), self._tell = settings.objectives[0], tell
        self._sign = 1 if mode == "max" else -1
        self._values = dict(enumerate(draw_trials(settings, seed)))
        self._values |= {number: trial.values for number, trial in previous.items()}
        self.count = len(remaining_trials(settings, previous))
        self.eliminated: dict[int, str] = {}
        """Configuration to why it will not win."""
        self._curves: defaultdict[int, list[float]] = defaultdict(list)
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._failed: set[int] = set()
        self._may_begin = 0
        for number, trial in previous.items():
            for report in trial.reports:
                self._add(number, report)
            if trial.over:
                self._begun.add(number)
                self._end(number, failed=trial.failed)
        self._eliminate()
        self._again = deque(
            number
            for number, trial in sorted(previous.items())
            if not trial.over and not (trial.failed and number // self._repeats in self.eliminated)
        )

    def suggest(self) -> TrialConfig | None:
        number = self._again.popleft() if self._again else self._next()
        if number is None:
            return None
        self._begun.add(number)
        return trial_config(number, self._values[number])

    @property
    def is_finished(self) -> bool:
        return not self._running()

    def reported(self, number: int, report: Mapping[str, Any]) -> str | None:
        self._add(number, report)
        configuration = number // self._repeats
        # Later reports than those of ended trials say nothing before the end.
        longest = max(map(len, self._ended_curves(configuration).values()), default=0)
        if len(self._curves[number]) < longest:
            self._eliminate()
        return self.eliminated.get(configuration)

    def ended(self, number: int, last: Mapping[str, Any] | None) -> None:
        self._end(number, failed=last is None)
        self._eliminate()

    def _add(self, number: int, report: Mapping[str, Any]) -> None:
        value, curve = self._sign * report[self._metric], self._curves[number]
        if report.get("training_iteration", len(curve) + 1) <= len(curve):
            return  # repeated after a process was replaced
        best = curve[-1] if curve else -math.inf
        curve.append(max(best, value) if math.isfinite(value) else best)

    def _end(self, number: int, *, failed: bool) -> None:
        curve = self._curves[number]
        (self._failed if failed or not curve or math.isinf(curve[-1]) else self._ended).add(number)

    def _next(self) -> int | None:
        contenders = self._contenders()
        waiting: dict[int, int] = {
            configuration: min(left)
            for configuration in contenders
            if (left := {*self._trials(configuration)} - self._begun)
        }
        if not waiting:
            return None
        running = [number % self._repeats for number in self._running() if number // self._repeats in contenders]
        seed = min(number % self._repeats for number in waiting.values())
        if seed and 0 in running:
            return None
        best_first = sorted(contenders, key=lambda configuration: (-self._mean(configuration), configuration))
        if seed and best_first[0] in waiting:
            return waiting[best_first[0]]
        if not running:
            # Half of them, so that results of the better half may eliminate the worse half before it begins.
            self._may_begin = math.ceil(len(contenders) / 2)
        if seed and (any(earlier < seed for earlier in running) or not self._may_begin):
            return None
        self._may_begin = max(0, self._may_begin - 1)
        return next(
            waiting[configuration]
            for configuration in best_first
            if configuration in waiting and waiting[configuration] % self._repeats == seed
        )

    def _trials(self, configuration: int) -> range:
        return range(configuration * self._repeats, (configuration + 1) * self._repeats)

    def _running(self) -> set[int]:
        return self._begun - self._ended - self._failed

    def _contenders(self) -> list[int]:
        present = [number for number in range(self._configurations) if number not in self.eliminated]
        failures = {number: len(self._failed.intersection(self._trials(number))) for number in present}
        return [number for number in present if failures[number] == min(failures.values())]

    def _ended_curves(self, configuration: int) -> dict[int, Curve]:
        ended = self._ended.intersection(self._trials(configuration))
        return {number % self._repeats: self._curves[number] for number in sorted(ended)}

    def _mean(self, configuration: int) -> float:
        curves = self._ended_curves(configuration).values()
        return fmean(curve[-1] for curve in curves) if curves else -math.inf

    def _eliminate(self) -> None:
        ended = {number: curves for number in self._contenders() if (curves := self._ended_curves(number))}
        if not ended:
            return
        running: defaultdict[int, dict[int, Curve]] = defaultdict(dict)
        for number in self._running():
            if self._curves[number]:
                running[number // self._repeats][number % self._repeats] = self._curves[number]
        forecast = Forecast(self._repeats, ended, running)
        leader = max(ended, key=lambda configuration: forecast.predicted[configuration].mean)
        for other in ended:
            probability = forecast.probability_to_pass(other, leader)
            if other != leader and len(ended[other]) < self._repeats and probability <= self._level:
                own = forecast.predicted[other]
                self.eliminated[other] = (
                    f"configuration {other} eliminated: {forecast.predicted[leader].mean - own.mean:.4g} behind"
                    f" configuration {leader} over {own.seeds} seed{'s' if own.seeds > 1 else ''}, passes it with a"
                    f" probability of {probability:.2g}"
                )
                self._tell(self.eliminated[other])


class Predicted(NamedTuple):
    """Mean of a configuration over all seeds, predicted from some."""

    seeds: int
    mean: float
    variance: float


class Forecast:
    """Predicts each configuration's mean over all seeds from its `ended` trials and those still `running`.

    Of n values out of R, with mean m and variance v, the mean over all R is m with the variance v (R - n) / (R n)
    (stochastic curtailment: Lan, Simon and Halperin 1982). The variance between seeds is pooled over configurations, or
    a configuration's own where that is larger. Where seeds are good or bad for all configurations, differences of
    trials with the same seed tell more. Their variance is the residual once the means of configurations and seeds are
    removed. The smaller probability of both counts.
    """

    def __init__(self, repeats: int, ended: Curves, running: Curves) -> None:
        self._repeats, self._ended, self._running = repeats, ended, running
        self._results = {
            configuration: {seed: curve[-1] for seed, curve in curves.items()}
            for configuration, curves in ended.items()
        }
        self._variance, self._freedom = pooled_variance(results.values() for results in self._results.values())
        blocks = map(self._pair_variance, {frozenset(results) for results in self._results.values()})
        self._pairs = max(blocks, key=lambda block: block[1], default=(0.0, 0))
        self.predicted = {configuration: self._predict(configuration) for configuration in ended}

    def probability_to_pass(self, configuration: int, leader: int) -> float:
        """Return how likely a configuration's mean over all seeds exceeds the leader's."""
        own, best = self.predicted[configuration], self.predicted[leader]
        probability = _probability(best.mean - own.mean, own.variance + best.variance, self._freedom)
        mine, theirs = self._results[configuration], self._results[leader]
        pairs = [theirs[seed] - mine[seed] for seed in mine.keys() & theirs.keys()]
        variance, freedom = self._pairs
        if not pairs or freedom < _MIN_FREEDOM:
            return probability
        to_come = self._remaining(max(variance, pooled_variance([pairs])[0]), len(pairs))
        return min(probability, _probability(fmean(pairs), to_come, freedom))

    def _predict(self, configuration: int) -> Predicted:
        """Predict from the ended trials, or with the running ones too where that leaves less variance."""
        results = [*self._results[configuration].values()]
        variance = max(self._variance, pooled_variance([results])[0])
        known = Predicted(len(results), fmean(results), self._remaining(variance, len(results)))
        running = self._running.get(configuration, {}).values()
        ends = [end for curve in running if (end := self._predict_end(configuration, curve))]
        if not ends:
            return known
        seeds = len(results) + len(ends)
        # All expected gains come from the same trials, so that their errors add up.
        shared_error = sum(math.sqrt(variance) for _, variance in ends) ** 2 / len(results)
        error = (sum(variance for _, variance in ends) + shared_error) / seeds**2
        mean = fmean([*results, *(value for value, _ in ends)])
        extended = Predicted(seeds, mean, self._remaining(variance, seeds) + error)
        return min(known, extended, key=lambda predicted: predicted.variance)

    def _predict_end(self, configuration: int, curve: Curve) -> tuple[float, float] | None:
        """Return the expected last value of a running trial and its variance, from what ended trials gained."""
        gains = {
            number: [ended[-1] - ended[min(len(curve), len(ended)) - 1] for ended in curves.values()]
            for number, curves in self._ended.items()
        }
        own = gains[configuration]
        variance, freedom = pooled_variance(gained for gained in gains.values() if all(map(math.isfinite, gained)))
        if not all(map(math.isfinite, [curve[-1], *own])) or freedom < (1 if variance else _MIN_FREEDOM):
            return None
        return curve[-1] + fmean(own), max(variance, pooled_variance([own])[0])

    def _remaining(self, variance: float, seeds: int) -> float:
        return variance * (self._repeats - seeds) / (self._repeats * seeds)

    def _pair_variance(self, seeds: Collection[int]) -> tuple[float, int]:
        """Return the variance between seeds of two configurations' difference, and its degrees of freedom."""
        rows = [[own[seed] for seed in seeds] for own in self._results.values() if own.keys() >= {*seeds}]
        if len(rows) < 2:
            return 0.0, 0
        means = [fmean(column) for column in zip(*rows, strict=True)]
        left, _ = pooled_variance([value - mean for value, mean in zip(row, means, strict=True)] for row in rows)
        # The means of seeds cost degrees of freedom.
        return 2 * left * len(rows) / (len(rows) - 1), (len(rows) - 1) * (len(seeds) - 1)


def pooled_variance(groups: Iterable[Collection[float]]) -> tuple[float, int]:
    """Return the variance around each group's mean, and its degrees of freedom."""
    squares = largest = 0.0
    freedom = 0
    for group in groups:
        mean = fmean(group)
        squares += sum((value - mean) ** 2 for value in group)
        largest, freedom = max(largest, *map(abs, group)), freedom + len(group) - 1
    # The difference of equal sums may be some rounding errors.
    return (squares / freedom if freedom and squares > (1e-12 * largest) ** 2 else 0.0), freedom


def _probability(ahead: float, variance: float, freedom: int) -> float:
    """Return how likely the leader loses its lead, by Student's t."""
    if ahead <= 0 or not freedom:
        return 1.0
    if not variance:
        return 0.0 if freedom >= _MIN_FREEDOM else 1.0
    return tail(ahead / math.sqrt(variance), freedom)
