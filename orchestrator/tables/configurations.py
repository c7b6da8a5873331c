"""Configurations: trials of a sweep that differ only in their seed, and Student's t for them.
Imports no pandas."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from orchestrator import units
from orchestrator.disk.metadata import COMPLETE

CONFIDENCE_LEVEL = 0.95
"""Confidence level of the interval around a mean."""


class Repeat(NamedTuple):
    """A trial of a configuration."""

    configuration: int
    trial: str
    status: str
    value: float | None
    """The sweep's metric at its best report."""


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
    return mean - standard_error if mode == "max" else mean + standard_error


def rank_configurations(
    repeats: Iterable[Repeat], mode: str, aggregate: str = "mean"
) -> list[Configuration]:
    """Return all configurations, best first: by the number of completed trials, then by their
    score.

    So a configuration with failed or missing trials never ranks above one with more seeds.
    """
    groups: dict[int, list[Repeat]] = {}
    for repeat in repeats:
        groups.setdefault(repeat.configuration, []).append(repeat)
    sign = -1 if mode == "max" else 1
    entries = [
        _make_configuration(number, group, mode, aggregate)
        for number, group in sorted(groups.items())
    ]
    return sorted(
        entries, key=lambda entry: (-entry.n, math.isnan(entry.score), sign * entry.score)
    )


def find_better_with_fewer_trials(
    ordered: Sequence[Configuration], mode: str
) -> Configuration | None:
    """Return the configuration whose score is better than the first's, but which has fewer trials;
    None if none is."""
    sign = -1 if mode == "max" else 1
    better = [
        other for other in ordered[1:] if other.n and sign * other.score < sign * ordered[0].score
    ]
    return min(better, key=lambda other: sign * other.score, default=None)


def _make_configuration(
    number: int, group: Sequence[Repeat], mode: str, aggregate: str
) -> Configuration:
    sign = -1 if mode == "max" else 1
    known = [
        repeat for repeat in group if units.is_number(repeat.value) and repeat.status != "failed"
    ]
    known.sort(key=lambda repeat: (sign * (repeat.value or 0), repeat.trial))
    ended = [repeat for repeat in known if repeat.status in COMPLETE]
    running = [repeat for repeat in known if repeat.status not in COMPLETE]
    values = [float(repeat.value or 0) for repeat in ended or running]
    mean = compute_score(values, mode, "mean") if values else math.nan
    std = math.nan
    half_width = math.nan
    if len(values) > 1 and math.isfinite(mean):
        std = stdev(values)
        quantile = compute_quantile((1 + CONFIDENCE_LEVEL) / 2, len(values) - 1)
        half_width = quantile * std / math.sqrt(len(values))
    return Configuration(
        number=number,
        trials=tuple(repeat.trial for repeat in (*ended, *running)),
        n=len(ended),
        mean=mean,
        std=std,
        half_width=half_width,
        score=compute_score(values, mode, aggregate) if values else math.nan,
        failed=sum(repeat.status in ("failed", "lost", "damaged") for repeat in group),
        stopped=sum(repeat.status == "stopped" for repeat in group),
    )


# Student's t distribution for whole degrees of freedom, without SciPy


def compute_tail_probability(t: float, freedom: int) -> float:
    """Return the probability of a value above `t`, by Abramowitz and Stegun 26.7.3 and 26.7.4; 0
    below 1e-15."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle)
    if freedom % 2 == 0:
        inside = math.sin(angle) * _sum_series(1.0, 1, freedom, cosine)
    else:
        total = _sum_series(cosine, 2, freedom, cosine) if freedom > 1 else 0.0
        inside = (angle + math.sin(angle) * total) * 2 / math.pi
    return max(0.0, (1 - inside) / 2)


def _sum_series(term: float, first_factor: int, freedom: int, cosine: float) -> float:
    total = term
    for factor in range(first_factor, freedom - 2, 2):
        term *= cosine**2 * factor / (factor + 1)
        total += term
    return total


def compute_quantile(share: float, freedom: int) -> float:
    """Return the quantile of a share of at least 0.5; to 1e-9 for shares up to 0.9999."""
    low = 0.0
    high = 1.0
    while compute_tail_probability(high, freedom) > 1 - share:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if compute_tail_probability(middle, freedom) > 1 - share:
            low = middle
        else:
            high = middle
    return high
