"""`hookyard ls`"""

from __future__ import annotations

from typing import Any

from orchestrator.cli.options import AsJson, StorageFlag
from orchestrator.cli.output import print_json, print_table


def ls(storage: StorageFlag = "runs", as_json: AsJson = False) -> None:
    """Lists the runs and sweeps in a storage, the newest last."""
    from orchestrator.records.run_folder import list_runs, status_of

    rows: list[dict[str, Any]] = [
        {
            "name": folder.name,
            "kind": "sweep" if run.sweep else "run",
            "status": status_of(run),
            "started": run.started,
            "ended": run.ended or "",
            "path": str(folder),
        }
        for folder, run in list_runs(storage)
    ]
    if as_json:
        return print_json(rows)
    columns = ("name", "kind", "status", "started", "ended", "path")
    return print_table(columns, [[row[name] for name in columns] for row in rows])
