"""The reports of a run, in metrics.jsonl. Imports no pandas, so that `ls` and `show` are quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.checkpoint.position import Position, Stage
from orchestrator.records.metadata import Attempt, RunMetadata, seconds_at
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import log_omission, parse_lines, validate

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


def read_reports(storage: Storage, ended: RunMetadata | None) -> list[dict[str, Any]]:
    """Return all reports of a run. Damaged lines are skipped with a warning, a line cut short by a kill without one.

    `ended` is the metadata of a complete run, of which no report may be missing.
    """
    try:
        data = storage.read(FILE)
    except FileNotFoundError:
        data = b""
    path = str(storage / FILE)
    if ended and data and not data.endswith(b"\n"):
        log_omission(path, "its last line was cut short")
    elif ended and (missing := (ended.reports or 0) - data.count(b"\n")) > 0:
        log_omission(path, f"{missing} of its {ended.reports} reports are missing")
    return parse_lines(data, path, check_report)


def repair_reports(storage: Storage) -> None:
    """End a line that a kill cut short, so that the next report gets its own."""
    with suppress(FileNotFoundError):
        if not storage.read(FILE).endswith(b"\n"):
            storage.append(FILE, "\n")


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
