"""The reports of a run: lines of `metrics.jsonl`. Imports neither ray, torch nor pandas."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from hooks.position import Position, Stage
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.timestamps import seconds_at
from orchestrator.storage import Storage
from orchestrator.storage.json_lines import append_line, parse_lines
from orchestrator.storage.omissions import log_omission
from orchestrator.storage.validation import validate
from orchestrator.units import format_count

REPORTS = "metrics.jsonl"


@dataclass(frozen=True)
class _ReportEntries:
    """Entries of a report other than its metrics."""

    attempt: int | None = None
    iteration: int | None = None
    time: str | None = None
    epoch: int | None = None
    step: int | None = None


def check_report(line: Any) -> dict[str, Any]:
    """Return a line of metrics.jsonl that is valid; raises ValueError otherwise."""
    entries = validate(line, _ReportEntries)
    if not line or (entries.attempt is None and (entries.iteration, entries.time) != (None, None)):
        raise ValueError("it has no `attempt`")
    if entries.time is not None:
        seconds_at(entries.time)
    return dict(line)


def drop_superseded(
    lines: Sequence[Mapping[str, Any]], attempts: Sequence[Attempt]
) -> list[Mapping[str, Any]]:
    """Return the reports that no later attempt has repeated; each attempt repeats the report of the
    test phase."""
    current = []
    for line in lines:
        if line.get("attempt") is None or line.get("iteration") is None:
            what = f"a report without attempt or iteration is left out: {dict(line)}"
            log_omission(REPORTS, what)
            continue

        later = [attempt.position for attempt in attempts if attempt.number > line["attempt"]]
        is_test = any(name.startswith("test/") for name in line)
        reported = Position(iteration=line["iteration"], stage=Stage.REPORTED)
        if not any(is_test or start < reported for start in later):
            current.append(line)
    return current


def list_reported_names(reports: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names in all reports, in the order in which they first appear."""
    return list(dict.fromkeys(chain.from_iterable(reports)))


def append_report(storage: Storage, line: Mapping[str, Any]) -> None:
    storage.check_present()
    append_line(storage, REPORTS, line)


def end_last_line(storage: Storage) -> None:
    """End the last line, if a kill cut it short."""
    with suppress(FileNotFoundError):
        if not storage.read(REPORTS).endswith(b"\n"):
            storage.append(REPORTS, "\n")


def read_reports(storage: Storage, metadata: RunMetadata | None) -> list[dict[str, Any]]:
    """Return every intact line.

    Warns of damaged lines, and of missing ones of a complete run, but not of a line that a kill cut
    short.
    """
    path = str(storage / REPORTS)
    data = b""
    with suppress(FileNotFoundError):
        data = storage.read(REPORTS)

    if metadata and metadata.is_complete:
        missing = (metadata.reports or 0) - data.count(b"\n")
        if data and not data.endswith(b"\n"):
            log_omission(path, "its last line was cut short")
        elif missing > 0:
            log_omission(
                path, f"it lacks {missing} of its {format_count(metadata.reports or 0, 'report')}"
            )
    return parse_lines(data, path, check_report)
