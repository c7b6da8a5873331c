"""Configurations: trials of a sweep that differ only in their seed or another repeated value. Imports
no pandas."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from orchestrator import units
from orchestrator.disk.statuses import COMPLETE, FAILED
from orchestrator.tables.student_t import compute_quantile

CONFIDENCE_LEVEL = 0.95
"""Confidence level of the interval around a mean."""


class RankedTrial(NamedTuple):
    """A trial, and what decides its place in the ranking."""

    configuration: int | None
    """Number of its configuration; None in a sweep without repeats."""
    name: str
    status: str
    value: float | None
    """The sweep's metric at its best report."""
    infeasible: str | None = None
    """Which of the sweep's constraints it breaks."""


@dataclass(frozen=True)
class Configuration:
    """Summary of a configuration's completed trials; until there is one, of its trials that have
    not failed."""

    number: int
    trials: tuple[str, ...]
    """Trials that reported the metric and did not fail, best first."""
    n: int
    """Number of trials that finished or were stopped."""
    mean: float
    std: float
    """Standard deviation between seeds; NaN for fewer than two."""
    half_width: float
    """Half the width of the mean's confidence interval, by Student's t."""
    score: float
    """Mean or lower bound, by which configurations are ordered."""
    failed: int
    stopped: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def describe(self, metric: str) -> str:
        """Return the mean, its interval and the number of trials:
        `0.91 ± 0.02 (mean of 5 trials), 1 failed`."""
        text = units.format_value(metric, self.mean)
        if not math.isnan(self.half_width):
            text += f" ± {units.format_value(metric, self.half_width)}"
        if self.n:
            text += f" (mean of {units.format_count(self.n, 'trial')})"
        else:
            text += " (so far; no trial has ended)"
        if self.failed:
            text += f", {self.failed} failed"
        return text


def compute_score(values: Sequence[float], mode: str, aggregate: str) -> float:
    """Return the `mean` of a configuration's repeats, or their `lower_bound`, which is a standard
    error worse."""
    # fmean refuses inf - inf
    mean = fmean(values) if all(map(math.isfinite, values)) else sum(values)
    if aggregate == "mean" or len(values) < 2 or not math.isfinite(mean):
        return mean
    standard_error = stdev(values) / math.sqrt(len(values))
    return mean + _get_sign(mode) * standard_error


def rank_configurations(
    repeats: Iterable[RankedTrial], mode: str, aggregate: str = "mean"
) -> list[Configuration]:
    """Return all configurations, best first.

    The number of completed trials comes before the score, so that a configuration with failed or
    missing trials never ranks above one with more seeds.
    """
    groups: defaultdict[int, list[RankedTrial]] = defaultdict(list)
    for repeat in repeats:
        assert repeat.configuration is not None
        groups[repeat.configuration].append(repeat)
    configurations = [
        _make_configuration(number, group, mode, aggregate)
        for number, group in sorted(groups.items())
    ]

    def sort_key(configuration: Configuration) -> tuple[int, bool, float]:
        score = configuration.score
        return -configuration.n, math.isnan(score), _get_sign(mode) * score

    return sorted(configurations, key=sort_key)


def find_better_with_fewer_trials(
    ordered: Sequence[Configuration], mode: str
) -> Configuration | None:
    """Return the configuration whose score is better than the first's, but which has fewer trials;
    None if none is."""
    sign = _get_sign(mode)
    better = [
        other for other in ordered[1:] if other.n and sign * other.score < sign * ordered[0].score
    ]
    return min(better, key=lambda other: sign * other.score, default=None)


def _get_sign(mode: str) -> int:
    """Return the factor that makes less of a metric better."""
    return -1 if mode == "max" else 1


def _make_configuration(
    number: int, group: Sequence[RankedTrial], mode: str, aggregate: str
) -> Configuration:
    statuses = [repeat.status for repeat in group]
    ended = _list_best_first([repeat for repeat in group if repeat.status in COMPLETE], mode)
    others = _list_best_first(
        [repeat for repeat in group if repeat.status not in (*COMPLETE, "failed")], mode
    )
    values = [value for value, _ in ended or others]
    mean = math.nan
    std = math.nan
    half_width = math.nan
    score = math.nan
    if values:
        mean = compute_score(values, mode, "mean")
        score = compute_score(values, mode, aggregate)
    if len(values) > 1 and math.isfinite(mean):
        std = stdev(values)
        quantile = compute_quantile((1 + CONFIDENCE_LEVEL) / 2, len(values) - 1)
        half_width = quantile * std / math.sqrt(len(values))

    return Configuration(
        number=number,
        trials=tuple(trial for _, trial in (*ended, *others)),
        n=len(ended),
        mean=mean,
        std=std,
        half_width=half_width,
        score=score,
        failed=sum(status in FAILED for status in statuses),
        stopped=statuses.count("stopped"),
    )


def _list_best_first(repeats: Iterable[RankedTrial], mode: str) -> list[tuple[float, str]]:
    """Return the values and names of the trials that have reported the metric."""
    reported = []
    for repeat in repeats:
        if repeat.value is not None and units.is_number(repeat.value):
            reported.append((float(repeat.value), repeat.name))
    return sorted(reported, key=lambda entry: (_get_sign(mode) * entry[0], entry[1]))
