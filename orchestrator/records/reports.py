"""Reports: the lines of metrics.jsonl that count. Imports no pandas, so that `ls` and `show` are quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.checkpoint.position import Position, Stage
from orchestrator.records.metadata import Attempt


def counted_reports(lines: Sequence[Mapping[str, Any]], attempts: Sequence[Attempt]) -> list[Mapping[str, Any]]:
    """The reports that no later attempt made again; every attempt makes that of the test phase again."""
    kept = []
    for line in lines:
        later = [attempt.position for attempt in attempts if attempt.number > line["attempt"]]
        tested = any(name.startswith("test/") for name in line)
        if not any(tested or _comes_again(line, start) for start in later):
            kept.append(line)
    return kept


def _comes_again(line: Mapping[str, Any], start: Position) -> bool:
    if line["iteration"] == start.iteration:
        return start.stage < Stage.REPORTED
    return bool(line["iteration"] > start.iteration)
