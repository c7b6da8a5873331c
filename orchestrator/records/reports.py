"""The reports of a run, in metrics.jsonl. Imports no pandas, so that `ls` and `show` are quick."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.checkpoint.manifest import Position, Stage
from orchestrator.records.metadata import Attempt, seconds_at
from orchestrator.storage.stored_data import log_omission, validate

FILE = "metrics.jsonl"


@dataclass(frozen=True)
class _Line:
    """Entries of a report other than its metrics."""

    attempt: int | None = None
    iteration: int | None = None
    time: str | None = None
    epoch: int | None = None
    step: int | None = None


def check_report(line: Any) -> dict[str, Any]:
    """Return a line of metrics.jsonl that is valid; raises ValueError otherwise."""
    entries: _Line = validate(line, _Line)
    if not line or (entries.attempt is None and (entries.iteration, entries.time) != (None, None)):
        raise ValueError("it has no `attempt`")
    if entries.time is not None:
        seconds_at(entries.time)
    return dict(line)


def drop_superseded(lines: Sequence[Mapping[str, Any]], attempts: Sequence[Attempt]) -> list[Mapping[str, Any]]:
    """Return the reports that no later attempt has repeated; each attempt repeats the report of the test phase."""
    current = []
    for line in lines:
        if line.get("attempt") is None or line.get("iteration") is None:
            log_omission(FILE, f"a report without attempt or iteration is left out: {dict(line)}")
            continue
        later = [attempt.position for attempt in attempts if attempt.number > line["attempt"]]
        is_test = any(name.startswith("test/") for name in line)
        if not any(is_test or _is_repeated(line, start) for start in later):
            current.append(line)
    return current


def _is_repeated(line: Mapping[str, Any], start: Position) -> bool:
    if line["iteration"] == start.iteration:
        return start.stage < Stage.REPORTED
    return bool(line["iteration"] > start.iteration)
