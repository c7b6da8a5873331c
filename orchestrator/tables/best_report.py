"""The best of several reports, and divergence. Does not import pandas, so that `show` starts
quickly."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from numbers import Real
from typing import Any

from orchestrator.units import is_number


@dataclass(frozen=True)
class Divergence:
    """A loss or metric that is no longer finite."""

    iteration: int
    """Iteration of the first report from which on the metric is not finite."""
    description: str

    def __str__(self) -> str:
        return self.description


def find_divergence(reports: Sequence[Mapping[str, Any]], metric: str | None) -> Divergence | None:
    """Return the first loss, or else `metric`, whose last reported value is not finite; None if all
    are finite.

    With several optimizers, each has a loss, such as `train/loss_d`.
    """
    losses = [
        name
        for report in reports
        for name in report
        if name == "train/loss" or name.startswith("train/loss_")
    ]
    for name in dict.fromkeys([*losses, *([metric] if metric else [])]):
        having = [
            (report[name], report) for report in reports if isinstance(report.get(name), Real)
        ]
        if having and not math.isfinite(last := having[-1][0]):
            *_, (_, first) = takewhile(lambda entry: not math.isfinite(entry[0]), reversed(having))
            description = f"{name} is {'NaN' if math.isnan(last) else last} since epoch {first.get('epoch', 0)}"
            return Divergence(first.get("iteration", 0), description)
    return None


def find_best_report(
    reports: Sequence[Mapping[str, Any]], metric: str, mode: str
) -> Mapping[str, Any] | None:
    """Return the first report with the best value of a metric, by `max` or `min`; None if no report
    has one."""
    finite = [
        report
        for report in reports
        if is_number(report.get(metric)) and math.isfinite(report[metric])
    ]
    return (max if mode == "max" else min)(finite, key=lambda report: report[metric], default=None)
