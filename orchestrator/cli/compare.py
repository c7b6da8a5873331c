"""`hookyard compare A B ...`"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.completion import run_folders
from orchestrator.cli.options import AsJson
from orchestrator.cli.output import cell, print_json, print_table
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.stats.compare import Side


def compare(
    runs: Annotated[list[str], typer.Argument(help="The folders of two runs or more; each is compared with the first.", autocompletion=run_folders)],
    as_json: AsJson = False,
) -> None:
    """Compares runs: where their configs differ, what they reached and cost, and which differences are only noise."""
    from hooks.parts.metric_direction import not_known
    from orchestrator.stats.compare import compare as compare_sides

    if len(runs) < 2:
        raise UsageError("compare takes two runs or more: hookyard compare runs/a runs/b")
    found = compare_sides([_side(run) for run in runs])
    if as_json:
        return print_json(found)
    names = found["runs"]
    typer.echo(", ".join(f"{name} ({ranks} {'rank' if ranks == 1 else 'ranks'})" for name, ranks in zip(names, found["ranks"], strict=True)))
    for title in ("config", "metrics", "costs"):
        typer.echo("")
        rows = [_line(name, entry) for name, entry in found[title].items()]
        print_table((title, *names), rows) if rows else typer.echo(f"{title}: no difference" if title == "config" else f"{title}: none yet")
    if found["not_known"]:
        typer.echo(f"\n{not_known(found['not_known'])}")
    return None


def _side(path: str) -> Side:
    from orchestrator.runs.result import open_run
    from orchestrator.stats.compare import COLUMNS, Side
    from orchestrator.stats.tables import recorded_schema

    run = open_run(path)
    recorded = recorded_schema(run.folder.storage).names
    known = [name for name in COLUMNS if name in recorded]
    return Side(run.name, run.config, run.reports(), run.load_stats(known, "phase == 'train'"), run.modes)


def _line(name: str, entry: Any) -> tuple[str, ...]:
    if not isinstance(entry, Mapping):
        return (name, *("-" if value is None else str(value) for value in entry))
    first = entry["values"][0]
    return (name, *(_text(name, value, first, verdict) for value, verdict in zip(entry["values"], entry["verdicts"], strict=True)))


def _text(name: str, value: float | None, first: float | None, verdict: str | None) -> str:
    text = cell(name, value)
    if verdict is None or value is None or not first:
        return text
    change = f"{value / first - 1:+.1%}"
    return f"{text} ({change})" if verdict in ("less", "more") else f"{text} ({change}, {verdict})"
