"""The best of several reports, and whether training diverged in them. Imports no pandas, so that `show` is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from orchestrator.stats.aggregate.quantities import is_number


@dataclass(frozen=True)
class Divergence:
    """A training that diverged."""

    metric: str
    value: float
    """As last reported."""
    step: int
    """That of the first report from which on the metric is no finite number."""

    def __str__(self) -> str:
        return f"{self.metric} is {self.value} since step {self.step}"


def divergence(reports: Sequence[Mapping[str, Any]], metric: str | None) -> Divergence | None:
    """Return how training diverged: its loss, or the metric by which its best is told, is no finite number in the last
    report that has it. None where both are. Each of several optimizers has a loss, such as `train/loss_d`."""
    losses = [name for report in reports for name in report if name == "train/loss" or name.startswith("train/loss_")]
    for name in dict.fromkeys([*losses, *([metric] if metric else [])]):
        values = [(report[name], report.get("step", 0)) for report in reports if isinstance(report.get(name), float)]
        if values and not math.isfinite(values[-1][0]):
            later = list(takewhile(lambda one: not math.isfinite(one[0]), reversed(values)))
            return Divergence(name, values[-1][0], later[-1][1])
    return None


def best_report(reports: Sequence[Mapping[str, Any]], metric: str, mode: str) -> Mapping[str, Any] | None:
    """The report in which a metric is best, by `max` or `min`, the first of equal ones; None where none has it as a
    finite number."""
    judged = [report for report in reports if is_number(report.get(metric)) and math.isfinite(report[metric])]
    return (max if mode == "max" else min)(judged, key=lambda report: report[metric], default=None)
