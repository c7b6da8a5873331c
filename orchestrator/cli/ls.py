"""`hookyard ls`: the runs and sweeps of a storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from time import localtime, strftime
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import AsJson, StorageFlag
from orchestrator.cli.output import echo, format_cell, print_json, print_table
from orchestrator.disk.timestamps import seconds_at
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.storage import Storage, without_credentials
from orchestrator.units import format_rough_duration

if TYPE_CHECKING:
    from orchestrator.disk.best import Best
    from orchestrator.disk.metadata import RunMetadata
    from orchestrator.disk.run_folder import RunFolder

_OPTIONAL_COLUMNS = ("driver", "diverged", "tags", "notes")
"""Columns that are shown only if a run has a value there."""


def ls(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Only these runs, with wildcards: 'digits*'"),
    ] = None,
    storage: StorageFlag = "runs",
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help="Only this status: running, finished, stopped, interrupted, failed, lost.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Only runs with all these tags.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs and sweeps in a storage with status and best metric, the newest last.

    Example: hookyard ls 'spirals*' --status finished
    """
    from orchestrator.disk.statuses import STATUSES

    unknown = [word for word in status or () if word not in STATUSES]
    if unknown:
        raise UsageError(f"--status must be one of {', '.join(STATUSES)}, got {unknown[0]!r}")

    listed = _list_runs(storage)
    selected = [(folder, run) for folder, run in listed if _has_name(folder, names or ())]
    for _, run in selected:
        if isinstance(run, DamagedFile):
            echo(str(run), err=True)
    rows = [
        row
        for row in Storage(storage).map(_make_row, selected)
        if (not status or row.status in status) and {*(tag or ())} <= {*row.tags}
    ]
    if as_json:
        return print_json(rows)
    if rows:
        return _print_rows(rows)
    subject = "no matching runs" if listed else "no runs"
    return echo(f"{subject} in {without_credentials(storage)}", err=True)


def _list_runs(storage: str) -> list[tuple[RunFolder, RunMetadata | DamagedFile]]:
    """Return the runs of a storage; raises UsageError if it is not a folder of runs."""
    from orchestrator.disk.listing import check_runs_folder, list_metadata

    listed = list_metadata(storage)
    if not listed:
        check_runs_folder(Storage(storage))
    return listed


def _has_name(folder: RunFolder, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(folder.name, pattern) for pattern in patterns)


def _make_row(listed: tuple[RunFolder, RunMetadata | DamagedFile]) -> _Row:
    from orchestrator.disk.run_status import find_status

    folder, run = listed
    if isinstance(run, DamagedFile):
        return _Row(folder.name, str(folder), run.status)

    status = find_status(folder, run)
    return _Row(
        name=folder.name,
        path=str(folder),
        status=status,
        kind=run.kind,
        driver=run.describe_driver(status) or "",
        best=run.best,
        diverged=run.diverged or (run.best.diverged if run.best else ""),
        tags=run.tags,
        notes=run.notes,
        started=run.started,
        ended=run.ended or "",
        took_s=run.wall_s,
    )


@dataclass(frozen=True)
class _Row:
    """A run or a sweep. `--json` prints the fields; texts are empty if they are unknown."""

    name: str
    path: str
    status: str
    kind: str = ""
    driver: str = ""
    best: Best | None = None
    diverged: str = ""
    tags: Sequence[str] = ()
    notes: str = ""
    started: str = ""
    ended: str = ""
    took_s: float | None = None

    def format_cells(self) -> dict[str, str]:
        """Format the row for people, with local times and without the path."""
        started = ""
        if self.started:
            started = strftime("%Y-%m-%d %H:%M", localtime(seconds_at(self.started)))
        return {
            "name": self.name,
            "kind": self.kind,
            "status": self.status,
            "driver": self.driver,
            "best": _format_best(self.best) if self.best else "",
            "diverged": self.diverged,
            "tags": " ".join(self.tags),
            "notes": self.notes,
            "started": started,
            "took": "" if self.took_s is None else format_rough_duration(self.took_s),
        }


def _format_best(best: Best) -> str:
    """Format the best metric, and the checkpoint that has it."""
    from orchestrator.disk.best import BestConfiguration

    value = format_cell(best.metric, best.value)
    if isinstance(best, BestConfiguration):
        value = best.description
    text = f"{best.metric} {value}"
    return f"{text} ({best.place})" if best.place else text


def _print_rows(rows: Sequence[_Row]) -> None:
    cells = [row.format_cells() for row in rows]
    columns = []
    for name in cells[0]:
        has_values = any(row[name] for row in cells)
        if has_values or name not in _OPTIONAL_COLUMNS:
            columns.append(name)

    lines = []
    for row in cells:
        lines.append([row[name] for name in columns])
    print_table(columns, lines)
