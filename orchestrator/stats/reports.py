"""Reports: the lines of metrics.jsonl that count. Imports no pandas, so that `ls` and `show` are quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.checkpoint.position import Stage


def counted_reports(lines: Sequence[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The reports that no later attempt made again."""
    kept = []
    for line in lines:
        later = [a["position"] or {"step": 0, "stage": Stage.TRAIN} for a in attempts if a["attempt"] > line["attempt"]]
        again = any(
            line["step"] > start["step"] or (line["step"] == start["step"] and start["stage"] < Stage.REPORTED) for start in later
        )
        if not again:
            kept.append(line)
    return kept
