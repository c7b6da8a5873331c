"""Reports: the lines of metrics.jsonl that count. Imports no pandas, so that `ls` and `show` are quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.checkpoint.position import Position, Stage
from orchestrator.records.metadata import Attempt, seconds_at
from orchestrator.storage.stored_data import checked, left_out


@dataclass(frozen=True)
class _Line:
    """What a report holds beside its metrics."""

    attempt: int | None = None
    iteration: int | None = None
    time: str | None = None
    epoch: int | None = None
    step: int | None = None


def checked_report(line: Any) -> dict[str, Any]:
    """A line of metrics.jsonl as it was read; raises ValueError for what is none."""
    known: _Line = checked(line, _Line)
    if not line or (known.attempt is None and (known.iteration, known.time) != (None, None)):
        raise ValueError("it does not say of which attempt it is")
    if known.time is not None:
        seconds_at(known.time)
    return dict(line)


def counted_reports(lines: Sequence[Mapping[str, Any]], attempts: Sequence[Attempt]) -> list[Mapping[str, Any]]:
    """The reports that no later attempt made again; every attempt makes that of the test phase again. One that does not
    say when it was made is left out, which is said."""
    kept = []
    for line in lines:
        if line.get("attempt") is None or line.get("iteration") is None:
            left_out("metrics.jsonl", f"a report that says no attempt or no iteration is left out: {dict(line)}")
            continue
        later = [attempt.position for attempt in attempts if attempt.number > line["attempt"]]
        tested = any(name.startswith("test/") for name in line)
        if not any(tested or _comes_again(line, start) for start in later):
            kept.append(line)
    return kept


def _comes_again(line: Mapping[str, Any], start: Position) -> bool:
    if line["iteration"] == start.iteration:
        return start.stage < Stage.REPORTED
    return bool(line["iteration"] > start.iteration)
