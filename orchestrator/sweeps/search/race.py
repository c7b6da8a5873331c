"""`scheduler: race`: compares configurations seed by seed and eliminates those unlikely to win. Does not need Ray.

All configurations train with the first seed to the end, since curves may cross. Then the configuration with the best
mean trains with its other seeds, and the others follow seed by seed, the better first. A configuration is eliminated
when its mean over all seeds is too unlikely to exceed that of the best.

Each of C configurations may be eliminated with a probability of up to level / (C - 1). So the one that would have won
is eliminated with a probability of at most `level`, as far as differences between seeds are normal.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from orchestrator.config.checks.space import count_trials
from orchestrator.config.sections.sweep import Race as RaceSettings
from orchestrator.config.sections.sweep import Sweep
from orchestrator.stats.aggregate.student_t import compute_tail_probability
from orchestrator.sweeps.results.previous_trials import PreviousTrial, remaining_trials
from orchestrator.sweeps.search.sampling import draw_trials
from orchestrator.sweeps.search.search import Search, TrialConfig, trial_config

_MIN_FREEDOM = 4
"""Degrees of freedom from which pairs count, and from which seeds without any difference count as equal."""


class Race(Search):
    """Decides which trial begins next, and stops the trials of eliminated configurations.

    A configuration with more failed trials than another one cannot win.
    """

    def __init__(
        self,
        settings: Sweep,
        seed: int,
        previous: Mapping[int, PreviousTrial],
        show_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(settings)
        assert isinstance(settings.scheduler, RaceSettings)
        self._repeats, self._configurations = settings.repeats, count_trials(settings) // settings.repeats
        self._level = settings.scheduler.level / max(1, self._configurations - 1)
        (self._metric, mode), self._show_line = settings.objectives[0], show_line
        self._sign = 1 if mode == "max" else -1
        self._values = dict(enumerate(draw_trials(settings, seed)))
        self._values |= {number: trial.values for number, trial in previous.items()}
        self.count = len(remaining_trials(settings, previous))
        self.eliminated: dict[int, str] = {}
        """Configuration to why it will not win."""
        self._best: dict[int, float] = {}
        """Best value of each trial; more is better."""
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._failed: set[int] = set()
        for number, trial in previous.items():
            for report in trial.reports:
                self._keep_best(number, report)
            if trial.is_over:
                self._begun.add(number)
                self._end(number, failed=trial.has_failed)
        self._eliminate()
        self._interrupted = deque(
            number
            for number, trial in sorted(previous.items())
            if not trial.is_over and not (trial.has_failed and number // self._repeats in self.eliminated)
        )

    def suggest(self) -> TrialConfig | None:
        number = self._interrupted.popleft() if self._interrupted else self._next()
        if number is None:
            return None
        self._begun.add(number)
        return trial_config(number, self._values[number])

    @property
    def is_finished(self) -> bool:
        return not self._running()

    def reported(self, number: int, report: Mapping[str, Any]) -> str | None:
        self._keep_best(number, report)
        return self.eliminated.get(number // self._repeats)

    def ended(self, number: int, last: Mapping[str, Any] | None) -> None:
        self._end(number, failed=last is None)
        self._eliminate()

    def _keep_best(self, number: int, report: Mapping[str, Any]) -> None:
        value = self._sign * report[self._metric]
        if math.isfinite(value):
            self._best[number] = max(value, self._best.get(number, value))

    def _end(self, number: int, *, failed: bool) -> None:
        (self._failed if failed or number not in self._best else self._ended).add(number)

    def _next(self) -> int | None:
        """Return the next trial: the first seed of each configuration, then all of the best one, then the rest."""
        contenders = self._contenders()
        waiting: list[int] = [
            min(remaining)
            for configuration in contenders
            if (remaining := {*self._trials(configuration)} - self._begun)
        ]
        if first_seeds := [number for number in waiting if number % self._repeats == 0]:
            return min(first_seeds)
        if any(number % self._repeats == 0 and number // self._repeats in contenders for number in self._running()):
            return None
        best = max(contenders, key=self._mean)

        def order(number: int) -> tuple[bool, int, float]:
            configuration, seed = divmod(number, self._repeats)
            return configuration != best, seed, -self._mean(configuration)

        return min(waiting, key=order, default=None)

    def _trials(self, configuration: int) -> range:
        return range(configuration * self._repeats, (configuration + 1) * self._repeats)

    def _running(self) -> set[int]:
        return self._begun - self._ended - self._failed

    def _contenders(self) -> list[int]:
        remaining = [number for number in range(self._configurations) if number not in self.eliminated]
        failures = {number: len(self._failed.intersection(self._trials(number))) for number in remaining}
        return [number for number in remaining if failures[number] == min(failures.values())]

    def _results(self, configuration: int) -> dict[int, float]:
        """Return the result of each seed whose trial has ended."""
        ended = self._ended.intersection(self._trials(configuration))
        return {number % self._repeats: self._best[number] for number in sorted(ended)}

    def _mean(self, configuration: int) -> float:
        results = self._results(configuration)
        return fmean(results.values()) if results else -math.inf

    def _eliminate(self) -> None:
        results = {number: ended for number in self._contenders() if (ended := self._results(number))}
        if not results:
            return
        best = max(results, key=self._mean)
        probabilities = probabilities_to_win(results, best, self._repeats)
        for other, probability in probabilities.items():
            seeds = len(results[other])
            if seeds < self._repeats and probability <= self._level:
                behind = self._mean(best) - self._mean(other)
                self.eliminated[other] = (
                    f"configuration {other} eliminated: {behind:.4g} behind configuration {best} over {seeds}"
                    f" seed{'s' if seeds > 1 else ''}; probability of overtaking it: {probability:.2g}"
                )
                self._show_line(self.eliminated[other])


def probabilities_to_win(results: Mapping[int, Mapping[int, float]], best: int, repeats: int) -> dict[int, float]:
    """Return for each other configuration the probability that its mean over all `repeats` exceeds that of the best.

    `results` has the result of each configuration and seed. Of n values out of R, with mean m and variance v, the mean
    over all R is m with the variance v (R - n) / (R n) (stochastic curtailment: Lan, Simon and Halperin 1982). The
    variance between seeds is pooled over configurations, or a configuration's own where that is larger. The difference
    of two means has Student's t distribution. Where seeds are good or bad for all configurations, the differences of
    trials with the same seed vary less, so the smaller of both probabilities counts.
    """
    pooled, freedom = pooled_variance([values.values() for values in results.values()])
    paired, paired_freedom = _variance_of_differences(results)

    def variance_of_mean(values: Collection[float], pooled: float) -> float:
        variance = max(pooled, pooled_variance([values])[0])
        return variance * (repeats - len(values)) / (repeats * len(values))

    def probability(configuration: int) -> float:
        own_results, best_results = results[configuration], results[best]
        variance = variance_of_mean(own_results.values(), pooled) + variance_of_mean(best_results.values(), pooled)
        unpaired = _probability(fmean(best_results.values()) - fmean(own_results.values()), variance, freedom)
        differences = [best_results[seed] - own_results[seed] for seed in own_results.keys() & best_results.keys()]
        if not differences or paired_freedom < _MIN_FREEDOM:
            return unpaired
        return min(unpaired, _probability(fmean(differences), variance_of_mean(differences, paired), paired_freedom))

    return {configuration: probability(configuration) for configuration in results if configuration != best}


def _variance_of_differences(results: Mapping[int, Mapping[int, float]]) -> tuple[float, int]:
    """Return the variance between seeds of the difference of two configurations, and its degrees of freedom.

    It is twice the residual variance without the means of configurations and seeds, in the largest table of
    configurations with the same seeds.
    """
    variance, most_freedom = 0.0, 0
    for seeds in {frozenset(values) for values in results.values()}:
        table = np.array([[values[seed] for seed in seeds] for values in results.values() if values.keys() >= seeds])
        freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
        if freedom > most_freedom:
            residuals = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
            variance, most_freedom = 2 * float((residuals**2).sum()) / freedom, freedom
    return variance, most_freedom


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


def _probability(lead: float, variance: float, freedom: int) -> float:
    """Return the probability that a difference of `lead` changes its sign, by Student's t."""
    if lead <= 0 or not freedom:
        return 1.0
    if not variance:
        return 0.0 if freedom >= _MIN_FREEDOM else 1.0
    return compute_tail_probability(lead / math.sqrt(variance), freedom)
