"""The best of several reports. Imports no pandas, so that `show` is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.stats.aggregate.quantities import is_number


def best_report(reports: Sequence[Mapping[str, Any]], metric: str, mode: str) -> Mapping[str, Any] | None:
    """The report in which a metric is best, by `max` or `min`, the first of equal ones; None where none has it as a
    finite number."""
    judged = [report for report in reports if is_number(report.get(metric)) and math.isfinite(report[metric])]
    return (max if mode == "max" else min)(judged, key=lambda report: report[metric], default=None)
