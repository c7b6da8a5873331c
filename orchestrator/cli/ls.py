"""`hookyard ls [NAME ...]`"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AsJson, StorageFlag
from orchestrator.cli.output import cell, echo, print_json, print_table
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.storage import Storage

if TYPE_CHECKING:
    from orchestrator.records.metadata import RunMetadata
    from orchestrator.records.run_folder import RunFolder


def ls(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; 'digits*' is all that begin so.")
    ] = None,
    storage: StorageFlag = "runs",
    status: Annotated[
        list[str] | None, typer.Option("--status", help="Only those that are so: finished, failed ...")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Only those with this tag; with several, with all of them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Lists the runs and sweeps in a storage, the newest last: how each stands, its best, its tags and notes."""
    from orchestrator.records.run_folder import STATUSES, RunFolder, list_runs

    if unknown := [word for word in status or () if word not in STATUSES]:
        raise UsageError(f"--status {unknown[0]} is none of {', '.join(STATUSES)}")
    listed = list_runs(storage)
    if not listed and not Storage(storage).exists():
        raise UsageError(f"there is no folder {storage}: nothing was run from here yet, or --storage says where")
    if not listed and RunFolder(storage).exists():
        raise UsageError(f"{storage} is a run itself: hookyard show {storage}")
    wanted = [
        (folder, run)
        for folder, run in listed
        if not names or any(fnmatchcase(folder.name, pattern) for pattern in names)
    ]
    for _, run in wanted:
        if isinstance(run, DamagedFile):
            echo(str(run), err=True)
    rows = Storage(storage).each(_row, wanted)
    rows = [row for row in rows if (not status or row["status"] in status) and {*(tag or ())} <= {*row["tags"]}]
    if as_json:
        return print_json(rows)
    if not rows:
        return echo(f"no such runs in {storage}" if listed else f"no runs in {storage}", err=True)
    shown = [{**row, "best": _best(row["best"]), "tags": " ".join(row["tags"])} for row in rows]
    columns = [
        name
        for name in rows[0]
        if name not in ("driver", "diverged", "tags", "notes") or any(row[name] for row in rows)
    ]
    return print_table(columns, [[row[name] for name in columns] for row in shown])


def _row(listed: tuple[RunFolder, RunMetadata | DamagedFile]) -> dict[str, Any]:
    folder, run = listed
    return {"name": folder.name, **_told(folder, run), "path": str(folder)}


def _told(folder: RunFolder, run: RunMetadata | DamagedFile) -> dict[str, Any]:
    """What a run's `run.json` says of it; of a damaged one nothing but that."""
    from orchestrator.records.run_driver import status_of

    if isinstance(run, DamagedFile):
        return {
            "kind": "",
            "status": "damaged",
            "driver": "",
            "best": None,
            "diverged": "",
            "tags": [],
            "notes": "",
            "started": "",
            "ended": "",
        }
    status = status_of(folder, run)
    return {
        "kind": "sweep" if run.sweep else "evaluation" if run.evaluates else "run",
        "status": status,
        "driver": run.driver_in_words(status) or "",
        "best": run.best,
        "diverged": run.diverged or (run.best or {}).get("diverged", ""),
        "tags": list(run.tags),
        "notes": run.notes,
        "started": run.started,
        "ended": run.ended or "",
    }


def _best(best: Mapping[str, Any] | None) -> str:
    """What a run reached, and the checkpoint of its best, where it has one."""
    if best is None:
        return ""
    kept = "/".join(part for part in (best.get("trial"), best["checkpoint"]) if part)
    reached = best.get("in_words") or cell(best["metric"], best["value"])
    return f"{best['metric']} {reached}{f' ({kept})' if kept else ''}"
