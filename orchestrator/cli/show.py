"""`hookyard show RUN`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AsJson
from orchestrator.cli.output import cell, print_json, print_table

if TYPE_CHECKING:
    from orchestrator.runs.folder import RunFolder
    from orchestrator.sweeps.result import Sweep


def show(run: Annotated[str, typer.Argument(help="The folder of a run or a sweep.")], as_json: AsJson = False) -> None:
    """Shows a run: how it went, its last report, its checkpoints; or a sweep: its trials."""
    from orchestrator.runs.folder import RunFolder

    folder = RunFolder.open(run)
    if "sweep" in folder.about():
        from orchestrator.sweeps.result import Sweep

        return show_sweep(Sweep(folder), as_json)
    return print_json(brief(folder)) if as_json else show_brief(folder)


def brief(folder: RunFolder) -> dict[str, Any]:
    """A run in a few words, from its small files alone."""
    from orchestrator.runs.folder import status_of
    from orchestrator.stats.reports import counted_reports

    about = folder.about()
    reports = counted_reports(folder.reports(), folder.attempts())
    return {
        "name": folder.name,
        "path": str(folder),
        "status": status_of(about),
        "started": about.get("started"),
        "ended": about.get("ended"),
        "attempts": len(folder.attempts()),
        "stopped": about.get("stopped") or [],
        "error": about.get("error"),
        "reports": len(reports),
        "metrics": dict(reports[-1]) if reports else {},
        "checkpoints": [name for name in folder.storage.names("checkpoints") if not name.startswith((".", "index"))],
    }


def show_brief(folder: RunFolder) -> None:
    """Prints a run in a few words."""
    about = brief(folder)
    typer.echo(f"{about['path']}: {about['status']}, {about['reports']} reports, {about['attempts']} attempt(s)")
    for label in ("error", "stopped"):
        if about[label]:
            typer.echo(f"{label}: {about[label] if label == 'error' else ', '.join(about[label])}")
    if about["checkpoints"]:
        typer.echo(f"checkpoints: {', '.join(about['checkpoints'])}")
    rows = [(name, cell(name, value)) for name, value in about["metrics"].items() if name not in ("attempt", "time")]
    if rows:
        print_table(("last report", ""), rows)


def show_sweep(sweep: Sweep, as_json: bool) -> None:
    """Prints the trials of a sweep, the best first."""
    from orchestrator.errors import UsageError

    metric, mode = sweep.objective
    trials = sweep.trials
    if len(trials):
        trials = trials.sort_values(metric, ascending=mode == "min")
    try:
        best = sweep.best.path
    except UsageError:
        best = None
    if as_json:
        records = trials.reset_index().to_dict("records") if len(trials) else []
        return print_json({"path": sweep.path, "status": sweep.status, "best": best, "trials": records})
    wanted = ("config/", metric, "status", "reports", "step_s", "peak_", "error")
    columns = [name for name in trials.columns if name.startswith(wanted) and trials[name].notna().any()]
    print_table(
        ("trial", *(name.removeprefix("config/") for name in columns)),
        [(trial, *(cell(name, row[name]) for name in columns)) for trial, row in trials.iterrows()],
    )
    typer.echo(f"best: {best}" if best else f"no trial has reported {metric} yet")
    return None
