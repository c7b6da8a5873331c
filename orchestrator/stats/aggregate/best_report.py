"""The best of several reports, and divergence. Imports no pandas, so that `show` is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from orchestrator.stats.aggregate.quantities import is_number


@dataclass(frozen=True)
class Divergence:
    """A training whose loss or metric is no longer finite."""

    metric: str
    value: float
    """The last report."""
    step: int
    """The step of the first report since which the metric is not finite."""

    def __str__(self) -> str:
        return f"{self.metric} is {self.value} since step {self.step}"


def divergence(reports: Sequence[Mapping[str, Any]], metric: str | None) -> Divergence | None:
    """Return the first loss, otherwise `metric`, that is not finite in the last report that has it; None if all are.

    Each of several optimizers has a loss, such as `train/loss_d`.
    """
    losses = [name for report in reports for name in report if name == "train/loss" or name.startswith("train/loss_")]
    for name in dict.fromkeys([*losses, *([metric] if metric else [])]):
        values = [(report[name], report.get("step", 0)) for report in reports if isinstance(report.get(name), float)]
        if values and not math.isfinite(values[-1][0]):
            later = list(takewhile(lambda entry: not math.isfinite(entry[0]), reversed(values)))
            return Divergence(name, values[-1][0], later[-1][1])
    return None


def best_report(reports: Sequence[Mapping[str, Any]], metric: str, mode: str) -> Mapping[str, Any] | None:
    """Return the report in which a metric is best, by `max` or `min`, the first of equal ones; None without one."""
    finite = [report for report in reports if is_number(report.get(metric)) and math.isfinite(report[metric])]
    return (max if mode == "max" else min)(finite, key=lambda report: report[metric], default=None)
