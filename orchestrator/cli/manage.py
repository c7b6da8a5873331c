"""`hookyard ls`, `hookyard note` and `hookyard rm`: the runs of a storage."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from time import localtime, strftime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AsJson, RunOrSweep, StorageFlag, complete_runs
from orchestrator.cli.output import echo, format_cell, print_json, print_table
from orchestrator.disk.metadata import seconds_at
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.storage import Storage
from orchestrator.units import format_duration

if TYPE_CHECKING:
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
    from orchestrator.disk.metadata import STATUSES

    unknown = [word for word in status or () if word not in STATUSES]
    if unknown:
        raise UsageError(f"--status must be one of {', '.join(STATUSES)}, got {unknown[0]!r}")
    listed = _list_runs(storage)
    selected = [run for run in listed if _has_name(run[0], names or ())]
    for _, run in selected:
        if isinstance(run, DamagedFile):
            echo(str(run), err=True)
    rows = []
    for row in Storage(storage).map(_make_row, selected):
        has_status = not status or row["status"] in status
        if has_status and {*(tag or ())} <= {*row["tags"]}:
            rows.append(row)
    if as_json:
        return print_json(rows)
    if not rows:
        subject = "no matching runs" if listed else "no runs"
        return echo(f"{subject} in {storage}", err=True)
    return _print_runs([_format_row(row) for row in rows])


def _list_runs(storage: str) -> list[tuple[RunFolder, RunMetadata | DamagedFile]]:
    """Return the runs of a storage; raises UsageError if it is not a folder of runs."""
    from orchestrator.disk.listing import check_runs_folder, list_metadata

    listed = list_metadata(storage)
    if not listed:
        check_runs_folder(storage)
    return listed


def _has_name(folder: RunFolder, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(folder.name, pattern) for pattern in patterns)


def _print_runs(rows: Sequence[Mapping[str, str]]) -> None:
    columns = list(rows[0])
    for name in _OPTIONAL_COLUMNS:
        if not any(row[name] for row in rows):
            columns.remove(name)
    cells = []
    for row in rows:
        cells.append([row[name] for name in columns])
    print_table(columns, cells)


def _make_row(listed: tuple[RunFolder, RunMetadata | DamagedFile]) -> dict[str, Any]:
    folder, run = listed
    row: dict[str, Any] = {
        "name": folder.name,
        "path": str(folder),
        "best": None,
        "tags": [],
        "took_s": None,
    }
    row |= dict.fromkeys(("kind", "driver", "diverged", "notes", "started", "ended"), "")
    if isinstance(run, DamagedFile):
        return row | {"status": run.status}
    status = folder.find_status(run)
    return row | {
        "kind": run.kind,
        "status": status,
        "driver": run.describe_driver(status) or "",
        "best": run.best,
        "diverged": run.diverged or (run.best or {}).get("diverged", ""),
        "tags": list(run.tags),
        "notes": run.notes,
        "started": run.started,
        "ended": run.ended or "",
        "took_s": run.wall_s,
    }


def _format_row(row: Mapping[str, Any]) -> dict[str, str]:
    """Format a row for people, with local times and without the path."""
    started = row["started"] and seconds_at(row["started"])
    return {
        **{name: row[name] for name in ("name", "kind", "status", "driver")},
        "best": _format_best(row["best"]),
        "diverged": row["diverged"],
        "tags": " ".join(row["tags"]),
        "notes": row["notes"],
        "started": started and strftime("%Y-%m-%d %H:%M", localtime(started)),
        "took": "" if row["took_s"] is None else format_duration(row["took_s"]),
    }


def _format_best(best: Mapping[str, Any] | None) -> str:
    """Format the best metric, and the checkpoint that has it."""
    if best is None:
        return ""
    checkpoint = "/".join(part for part in (best.get("trial"), best["checkpoint"]) if part)
    value = best.get("description") or format_cell(best["metric"], best["value"])
    return f"{best['metric']} {value}{f' ({checkpoint})' if checkpoint else ''}"


def note(
    run: RunOrSweep,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The note; replaces the one before.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag to add.")] = None,
    untag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag to remove.")] = None,
) -> None:
    """Write a note about a run that has ended, or change its tags; `ls` shows both.

    A run starts with the `notes` and `tags` of its experiment.

    Example: hookyard note runs/spirals "first try" --tag baseline
    """
    from orchestrator.disk.run_folder import RunFolder

    folder = RunFolder.open(run)
    if text is None and not tag and not untag:
        raise UsageError("nothing to note: give a text, --tag or --untag")
    if "" in (tag or ()):
        raise UsageError("--tag must not be empty")
    with folder.lease():
        metadata = folder.read_metadata()
        if missing := [name for name in untag or () if name not in metadata.tags]:
            tags_text = (
                f"its tags are {', '.join(metadata.tags)}" if metadata.tags else "it has no tags"
            )
            raise UsageError(f"{folder} has no tag {', '.join(missing)}; {tags_text}")
        tags = [
            name
            for name in dict.fromkeys([*metadata.tags, *(tag or ())])
            if name not in (untag or ())
        ]
        folder.update(tags=tags, notes=metadata.notes if text is None else text)


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Runs and sweeps.", autocompletion=complete_runs),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove runs and sweeps with all their files, after listing their contents.

    Example: hookyard rm runs/spirals
    """
    from orchestrator.disk.removal import plan_removal

    removals = [plan_removal(run) for run in runs]
    for removal in removals:
        echo(removal.describe(), err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "nothing was removed: stdin is not a terminal, so Hookyard cannot ask for confirmation; use --yes"
            )
        typer.confirm("Remove this permanently?", abort=True, err=True)
    for removal in removals:
        removal.execute()
