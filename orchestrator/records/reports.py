"""Reports: the lines of metrics.jsonl that count. Imports no pandas, so that `ls` and `show` are quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.checkpoint.position import Stage


def counted_reports(lines: Sequence[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The reports that no later attempt made again; every attempt makes that of the test phase again."""
    kept = []
    for line in lines:
        later = [a["position"] or {"iteration": 0, "stage": Stage.TRAIN} for a in attempts if a["attempt"] > line["attempt"]]
        tested = any(name.startswith("test/") for name in line)
        if not any(tested or _comes_again(line, start) for start in later):
            kept.append(line)
    return kept


def _comes_again(line: Mapping[str, Any], start: Mapping[str, Any]) -> bool:
    if line["iteration"] == start["iteration"]:
        return bool(start["stage"] < Stage.REPORTED)
    return bool(line["iteration"] > start["iteration"])
