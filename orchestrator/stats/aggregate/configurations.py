"""Configurations: trials of a sweep that differ only in their seed. Imports no pandas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from orchestrator.records.run_folder import COMPLETE
from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.student_t import quantile

CONFIDENCE = 0.95
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
    """A configuration: the mean and spread of its trials that ended well; until one has, of those that did not fail."""

    number: int
    trials: tuple[str, ...]
    """Trials with the metric that did not fail, best first."""
    n: int
    """Number of trials that finished or were stopped."""
    mean: float
    std: float
    """Standard deviation between seeds; NaN for fewer than two."""
    half_width: float
    """Half the width of the mean's interval, by Student's t."""
    merit: float
    """The mean or its bound, by which configurations are ordered."""
    failed: int
    stopped: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def describe(self, metric: str) -> str:
        """Return the mean, its interval and the number of trials: `0.91 ± 0.02 (mean of 5 trials), 1 failed`."""
        around = "" if math.isnan(self.half_width) else f" ± {quantities.text(metric, self.half_width)}"
        over = f"mean of {self.n} trial{'s' if self.n > 1 else ''}" if self.n else "so far; no trial has ended"
        return (
            f"{quantities.text(metric, self.mean)}{around} ({over}){f', {self.failed} failed' if self.failed else ''}"
        )


def group_merit(values: Sequence[float], mode: str, aggregate: str) -> float:
    """Return the `mean` of a configuration's repeats, or their `lower_bound`, a standard error worse."""
    mean = fmean(values)
    if aggregate == "mean" or len(values) < 2 or not math.isfinite(mean):
        return mean
    error = stdev(values) / math.sqrt(len(values))
    return mean - error if mode == "max" else mean + error


def configurations(repeats: Iterable[Repeat], mode: str, aggregate: str = "mean") -> list[Configuration]:
    """Return all configurations, best first: by the number of trials that ended well, then by the mean or its bound.

    So a configuration with failed or missing trials never ranks above one that was good with more seeds.
    """
    groups: dict[int, list[Repeat]] = {}
    for repeat in repeats:
        groups.setdefault(repeat.configuration, []).append(repeat)
    sign = -1 if mode == "max" else 1
    entries = [_configuration(number, group, mode, aggregate) for number, group in sorted(groups.items())]
    return sorted(entries, key=lambda entry: (-entry.n, math.isnan(entry.merit), sign * entry.merit))


def ahead_with_fewer(ordered: Sequence[Configuration], mode: str) -> Configuration | None:
    """Return a configuration with a better value than the first, but of fewer trials; None without one."""
    sign = -1 if mode == "max" else 1
    better = [other for other in ordered[1:] if other.n and sign * other.merit < sign * ordered[0].merit]
    return min(better, key=lambda other: sign * other.merit, default=None)


def _configuration(number: int, group: Sequence[Repeat], mode: str, aggregate: str) -> Configuration:
    sign = -1 if mode == "max" else 1
    valued = sorted(
        (
            repeat
            for repeat in group
            if repeat.value is not None and repeat.value == repeat.value and repeat.status != "failed"
        ),
        key=lambda repeat: (sign * (repeat.value or 0), repeat.trial),
    )
    ended = [repeat for repeat in valued if repeat.status in COMPLETE]
    values = [float(repeat.value or 0) for repeat in ended or valued]
    spread = stdev(values) if len(values) > 1 else math.nan
    return Configuration(
        number,
        tuple(repeat.trial for repeat in (*ended, *(repeat for repeat in valued if repeat not in ended))),
        len(ended),
        fmean(values) if values else math.nan,
        spread,
        (
            quantile((1 + CONFIDENCE) / 2, len(values) - 1) * spread / math.sqrt(len(values))
            if len(values) > 1
            else math.nan
        ),
        group_merit(values, mode, aggregate) if values else math.nan,
        sum(repeat.status in ("failed", "lost", "damaged") for repeat in group),
        sum(repeat.status == "stopped" for repeat in group),
    )
