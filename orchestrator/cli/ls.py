"""`hookyard ls`"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from orchestrator.cli.options import AsJson, StorageFlag
from orchestrator.cli.output import cell, print_json, print_table
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.storage import Storage


def ls(storage: StorageFlag = "runs", as_json: AsJson = False) -> None:
    """Lists the runs and sweeps in a storage, the newest last."""
    from orchestrator.records.run_folder import RunFolder, list_runs, status_of

    listed = list_runs(storage)
    if not listed and not Storage(storage).exists():
        raise UsageError(f"there is no folder {storage}: nothing was run from here yet, or --storage says where")
    if not listed and RunFolder(storage).exists():
        raise UsageError(f"{storage} is a run itself: hookyard show {storage}")
    rows: list[dict[str, Any]] = []
    for folder, run in listed:
        if isinstance(run, DamagedFile):
            typer.echo(str(run), err=True)
            known: dict[str, Any] = {"kind": "", "status": "damaged", "best": None, "started": "", "ended": ""}
        else:
            kind = "sweep" if run.sweep else "run"
            known = {"kind": kind, "status": status_of(run), "best": run.best, "started": run.started, "ended": run.ended or ""}
        rows.append({"name": folder.name, **known, "path": str(folder)})
    if as_json:
        return print_json(rows)
    if not rows:
        return typer.echo(f"no runs in {storage}", err=True)
    for row in rows:
        row["best"] = _shown(row["best"])
    columns = ("name", "kind", "status", "best", "started", "ended", "path")
    return print_table(columns, [[row[name] for name in columns] for row in rows])


def _shown(best: Mapping[str, Any] | None) -> str:
    """What a run reached, and the checkpoint of its best, where it has one."""
    if best is None:
        return ""
    kept = "/".join(part for part in (best.get("trial"), best["checkpoint"]) if part)
    return f"{best['metric']} {cell(best['metric'], best['value'])}{f' ({kept})' if kept else ''}"
