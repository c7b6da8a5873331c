"""Reports: the lines of metrics.jsonl that count. Imports no pandas, so that `ls` and `show` are quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.checkpoint.position import Position, Stage
from orchestrator.records.metadata import Attempt
from orchestrator.stats.quantities import is_number


def counted_reports(lines: Sequence[Mapping[str, Any]], attempts: Sequence[Attempt]) -> list[Mapping[str, Any]]:
    """The reports that no later attempt made again; every attempt makes that of the test phase again."""
    kept = []
    for line in lines:
        later = [attempt.position for attempt in attempts if attempt.number > line["attempt"]]
        tested = any(name.startswith("test/") for name in line)
        if not any(tested or _comes_again(line, start) for start in later):
            kept.append(line)
    return kept


def best_report(reports: Sequence[Mapping[str, Any]], metric: str, mode: str) -> Mapping[str, Any] | None:
    """The report in which a metric is best, by `max` or `min`; None where none has it."""
    judged = [report for report in reports if is_number(report.get(metric))]
    return (max if mode == "max" else min)(judged, key=lambda report: report[metric], default=None)


def _comes_again(line: Mapping[str, Any], start: Position) -> bool:
    if line["iteration"] == start.iteration:
        return start.stage < Stage.REPORTED
    return bool(line["iteration"] > start.iteration)
