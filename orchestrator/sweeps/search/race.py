"""`scheduler: race`: compares configurations seed by seed, and eliminates unlikely winners. Does
not need Ray.

All configurations train with the first seed to the end, because curves may cross. Then the
configuration with the best mean trains with its other seeds, and the others follow seed by seed,
better ones first. A configuration is eliminated when its mean over all seeds is too unlikely to
exceed the mean of the best one.

A configuration is eliminated if this probability is at most level / (C - 1), for C configurations.
So the true winner is eliminated with a probability of at most `level`, if the differences between
seeds are normally distributed.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.trial_counts import count_trials
from orchestrator.sweeps.search.drawing import draw_trials
from orchestrator.sweeps.search.search import (
    Search,
    TrialConfig,
    list_remaining_trials,
    make_trial_config,
)
from orchestrator.tables.configurations import compute_tail_probability
from orchestrator.tables.trial_index import TrialRecord
from orchestrator.units import format_count

_MIN_DEGREES_OF_FREEDOM = 4
"""Minimum degrees of freedom to use pairs, and to regard seeds with equal results as equal."""


class RacingTrials(Search):
    """Search that chooses the next trial, and stops the trials of eliminated configurations.

    A configuration with more failed trials than another one cannot win.
    """

    def __init__(
        self,
        settings: SweepSettings,
        seed: int,
        previous: Mapping[int, TrialRecord],
        show_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(settings)
        assert isinstance(settings.scheduler, Race)
        self._repeats = settings.repeat_count
        self._configurations = count_trials(settings) // settings.repeat_count
        self._level = settings.scheduler.level / max(1, self._configurations - 1)
        self._metric, mode = settings.objectives[0]
        self._sign = 1 if mode == "max" else -1
        self._show_line = show_line
        self._values = dict(enumerate(draw_trials(settings, seed)))
        self._values |= {number: dict(trial.values) for number, trial in previous.items()}
        self.count = len(list_remaining_trials(settings, previous))
        self.eliminated: dict[int, str] = {}
        """Reason for the elimination, by configuration."""
        self._best: dict[int, float] = {}
        """Best value of each trial; higher is better."""
        self._started: set[int] = set()
        self._ended: set[int] = set()
        self._failed: set[int] = set()
        self._paused: set[int] = set()
        self._replay(previous)
        self._interrupted = deque(self._list_interrupted(previous))

    def _replay(self, previous: Mapping[int, TrialRecord]) -> None:
        # In the order of their ends, because an eliminated configuration stays eliminated.
        for number, trial in sorted(previous.items(), key=lambda entry: entry[1].ended or ""):
            for report in trial.compared_reports:
                self._keep_best(number, report)
            if trial.has_ended:
                self._started.add(number)
                self._end(number, failed=trial.status == "failed")
                self._eliminate()

    def _list_interrupted(self, previous: Mapping[int, TrialRecord]) -> list[int]:
        """Return the trials to continue. A failed one runs again only if its configuration can
        still win."""
        numbers = []
        for number, trial in sorted(previous.items()):
            is_lost = trial.error and number // self._repeats in self.eliminated
            if not trial.has_ended and not is_lost:
                numbers.append(number)
        return numbers

    def suggest(self) -> TrialConfig | None:
        number = self._interrupted.popleft() if self._interrupted else self._choose_next()
        if number is None:
            return None
        self._started.add(number)
        return make_trial_config(number, self._values[number])

    @property
    def is_finished(self) -> bool:
        return not self._list_running()

    def record_report(self, number: int, report: Mapping[str, Any]) -> str | None:
        self._keep_best(number, report)
        return self.eliminated.get(number // self._repeats)

    def record_end(
        self, number: int, last: Mapping[str, Any] | None, excesses: Sequence[float] = ()
    ) -> None:
        self._end(number, failed=last is None)
        self._eliminate()

    def record_pause(self, number: int) -> None:
        self._paused.add(number)

    def _keep_best(self, number: int, report: Mapping[str, Any]) -> None:
        value = self._sign * report[self._metric]
        if math.isfinite(value):
            self._best[number] = max(value, self._best.get(number, value))

    def _end(self, number: int, *, failed: bool) -> None:
        has_result = not failed and number in self._best
        trials = self._ended if has_result else self._failed
        trials.add(number)

    def _choose_next(self) -> int | None:
        """Return the next trial: the first seed of each configuration, then all of the best one,
        then the rest."""
        contenders = self._list_contenders()
        waiting: list[int] = []
        for configuration in contenders:
            not_started = {*self._list_trials(configuration)} - self._started
            if not_started:
                waiting.append(min(not_started))

        first_seeds = [number for number in waiting if self._is_first_seed(number)]
        if first_seeds:
            return min(first_seeds)
        running = [number for number in self._list_running() if self._is_first_seed(number)]
        if any(number // self._repeats in contenders for number in running):
            return None

        best = max(contenders, key=self._compute_mean)

        def sort_key(number: int) -> tuple[bool, int, float]:
            configuration, seed = divmod(number, self._repeats)
            return configuration != best, seed, -self._compute_mean(configuration)

        return min(waiting, key=sort_key, default=None)

    def _is_first_seed(self, number: int) -> bool:
        return number % self._repeats == 0

    def _list_trials(self, configuration: int) -> range:
        return range(configuration * self._repeats, (configuration + 1) * self._repeats)

    def _list_running(self) -> set[int]:
        return self._started - self._ended - self._failed - self._paused

    def _list_contenders(self) -> list[int]:
        remaining = [
            number for number in range(self._configurations) if number not in self.eliminated
        ]
        failures = {
            number: len(self._failed.intersection(self._list_trials(number)))
            for number in remaining
        }
        return [number for number in remaining if failures[number] == min(failures.values())]

    def _get_results(self, configuration: int) -> dict[int, float]:
        """Return the result of each seed whose trial has ended."""
        ended = self._ended.intersection(self._list_trials(configuration))
        return {number % self._repeats: self._best[number] for number in sorted(ended)}

    def _compute_mean(self, configuration: int) -> float:
        results = self._get_results(configuration)
        return fmean(results.values()) if results else -math.inf

    def _eliminate(self) -> None:
        results = {}
        for configuration in self._list_contenders():
            ended = self._get_results(configuration)
            if ended:
                results[configuration] = ended
        if not results:
            return

        best = max(results, key=self._compute_mean)
        probabilities = compute_win_probabilities(results, best, self._repeats)
        for other, probability in probabilities.items():
            seeds = len(results[other])
            if seeds < self._repeats and probability <= self._level:
                gap = self._compute_mean(best) - self._compute_mean(other)
                self.eliminated[other] = (
                    f"configuration {other} eliminated: {gap:.4g} behind configuration {best} over"
                    f" {format_count(seeds, 'seed')}; probability of overtaking it:"
                    f" {probability:.2g}"
                )
                self._show_line(self.eliminated[other])


def compute_win_probabilities(
    results: Mapping[int, Mapping[int, float]], best: int, repeats: int
) -> dict[int, float]:
    """Compute each other configuration's probability that its mean over all `repeats` exceeds the
    mean of the best.

    `results` has the result of each configuration and seed. Of n values out of R, with mean m and
    variance v, the mean over all R is m with the variance v (R - n) / (R n) (stochastic
    curtailment: Lan, Simon and Halperin 1982). The variance between seeds is pooled over
    configurations, or a configuration's own where that is larger. The difference of two means has
    Student's t distribution. If a seed is good or bad for all configurations, the differences
    between trials with the same seed vary less, so the smaller of the two probabilities is used.
    """
    pooled, freedom = compute_pooled_variance([values.values() for values in results.values()])
    paired, paired_freedom = _compute_difference_variance(results)

    def compute_variance_of_mean(values: Collection[float], pooled: float) -> float:
        variance = max(pooled, compute_pooled_variance([values])[0])
        return variance * (repeats - len(values)) / (repeats * len(values))

    def compute_probability(configuration: int) -> float:
        own_results = results[configuration]
        best_results = results[best]
        lead = fmean(best_results.values()) - fmean(own_results.values())
        own_variance = compute_variance_of_mean(own_results.values(), pooled)
        best_variance = compute_variance_of_mean(best_results.values(), pooled)
        unpaired = _compute_overtaking_probability(lead, own_variance + best_variance, freedom)

        seeds = own_results.keys() & best_results.keys()
        differences = [best_results[seed] - own_results[seed] for seed in seeds]
        if not differences or paired_freedom < _MIN_DEGREES_OF_FREEDOM:
            return unpaired
        variance = compute_variance_of_mean(differences, paired)
        return min(
            unpaired,
            _compute_overtaking_probability(fmean(differences), variance, paired_freedom),
        )

    return {
        configuration: compute_probability(configuration)
        for configuration in results
        if configuration != best
    }


def _compute_difference_variance(results: Mapping[int, Mapping[int, float]]) -> tuple[float, int]:
    """Return the variance, between seeds, of the difference of two configurations, and its degrees
    of freedom.

    It is twice the residual variance after subtracting the means of configurations and seeds, in
    the largest table of configurations with the same seeds.
    """
    variance = 0.0
    max_freedom = 0
    for seeds in {frozenset(values) for values in results.values()}:
        rows = []
        for values in results.values():
            if values.keys() >= seeds:
                rows.append([values[seed] for seed in seeds])
        table = np.array(rows)
        freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
        if freedom > max_freedom:
            effects = table.mean(axis=0) + table.mean(axis=1, keepdims=True) - table.mean()
            residuals = table - effects
            variance = 2 * float((residuals**2).sum()) / freedom
            max_freedom = freedom
    return variance, max_freedom


def compute_pooled_variance(groups: Iterable[Collection[float]]) -> tuple[float, int]:
    """Return the variance around each group's mean, and its degrees of freedom."""
    squares = 0.0
    largest = 0.0
    freedom = 0
    for group in groups:
        mean = fmean(group)
        squares += sum((value - mean) ** 2 for value in group)
        largest = max(largest, *map(abs, group))
        freedom += len(group) - 1
    # Equal sums may differ by rounding errors.
    has_variance = freedom > 0 and squares > (1e-12 * largest) ** 2
    return (squares / freedom if has_variance else 0.0), freedom


def _compute_overtaking_probability(lead: float, variance: float, freedom: int) -> float:
    """Return the probability that a difference of `lead` changes its sign, from Student's t
    distribution."""
    if lead <= 0 or not freedom:
        return 1.0
    if not variance:
        return 0.0 if freedom >= _MIN_DEGREES_OF_FREEDOM else 1.0
    return compute_tail_probability(lead / math.sqrt(variance), freedom)
