"""Configurations: what the trials of a sweep reached together that differ in their seed alone. Reads no files; imports
no pandas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from orchestrator.records.run_folder import ENDED
from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.student_t import quantile

CONFIDENCE = 0.95
"""Of the interval around a mean."""


class Repeat(NamedTuple):
    """A trial, as its configuration sees it."""

    configuration: int
    trial: str
    status: str
    value: float | None
    """The sweep's metric at its best report."""


@dataclass(frozen=True)
class Configuration:
    """One configuration: over those of its trials that ended well, their mean and its spread between seeds.

    Where none has ended yet it is over what they have reached so far.
    """

    number: int
    trials: tuple[str, ...]
    """Those begun that have the metric, the best first."""
    n: int
    """How many ended well, by themselves or as they were stopped."""
    mean: float
    std: float
    """Between seeds; NaN of fewer than two."""
    half_width: float
    """Of the mean's interval, by Student's t."""
    merit: float
    """What it is judged by: the mean, or its bound."""
    failed: int
    stopped: int

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.mean + self.half_width

    def in_words(self, metric: str) -> str:
        """Its mean with the interval, and of how many trials that is: `0.91 ± 0.02 (mean of 5 trials), 1 failed`."""
        around = "" if math.isnan(self.half_width) else f" ± {quantities.text(metric, self.half_width)}"
        over = f"mean of {self.n} trial{'s' if self.n > 1 else ''}" if self.n else "so far, of none that has ended"
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
    """All configurations, the best first: those with the most trials that ended well, and among these by their mean or
    its bound, `max` or `min`.

    So a configuration whose trials failed, or were not begun, is never called better than one that has held with more
    seeds.
    """
    groups: dict[int, list[Repeat]] = {}
    for repeat in repeats:
        groups.setdefault(repeat.configuration, []).append(repeat)
    sign = -1 if mode == "max" else 1
    found = [_of(number, group, mode, aggregate) for number, group in sorted(groups.items())]
    return sorted(found, key=lambda one: (-one.n, math.isnan(one.merit), sign * one.merit))


def ahead_with_fewer(ordered: Sequence[Configuration], mode: str) -> Configuration | None:
    """The configuration that is judged better than the first, though it is of fewer trials; None where there is
    none."""
    sign = -1 if mode == "max" else 1
    better = [one for one in ordered[1:] if one.n and sign * one.merit < sign * ordered[0].merit]
    return min(better, key=lambda one: sign * one.merit, default=None)


def _of(number: int, group: Sequence[Repeat], mode: str, aggregate: str) -> Configuration:
    sign = -1 if mode == "max" else 1
    judged = sorted(
        (one for one in group if one.value is not None and one.value == one.value),
        key=lambda one: (sign * (one.value or 0), one.trial),
    )
    ended = [one for one in judged if one.status in ENDED]
    values = [float(one.value or 0) for one in ended or judged]
    spread = stdev(values) if len(values) > 1 else math.nan
    return Configuration(
        number,
        tuple(one.trial for one in (*ended, *(one for one in judged if one not in ended))),
        len(ended),
        fmean(values) if values else math.nan,
        spread,
        (
            quantile((1 + CONFIDENCE) / 2, len(values) - 1) * spread / math.sqrt(len(values))
            if len(values) > 1
            else math.nan
        ),
        group_merit(values, mode, aggregate) if values else math.nan,
        sum(one.status in ("failed", "lost", "damaged") for one in group),
        sum(one.status == "stopped" for one in group),
    )
