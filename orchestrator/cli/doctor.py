"""`hookyard doctor RUN [--against OTHER]`"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import AsJson
from orchestrator.cli.output import print_json

if TYPE_CHECKING:
    from orchestrator.stats.insight import Diagnosis


def doctor(
    run: Annotated[str, typer.Argument(help="The folder of a run.")],
    against: Annotated[str | None, typer.Option("--against", metavar="RUN", help="A run to compare its speed with.")] = None,
    as_json: AsJson = False,
) -> None:
    """Says what the tables of a run tell: slow ranks, waiting for data, costly hooks, memory that grows, loss spikes."""
    from orchestrator.runs.result import open_run
    from orchestrator.stats.insight import diagnose

    opened, other = open_run(run), open_run(against) if against else None
    diagnosis = diagnose(opened.stats, opened.hook_costs, None if other is None else other.stats, against or "")
    if not as_json:
        return _print(opened.path, diagnosis)
    return print_json(
        {
            "path": opened.path,
            "healthy": diagnosis.healthy,
            "signs": diagnosis.signs,
            "verdicts": [asdict(verdict) for verdict in diagnosis.verdicts],
        }
    )


def _print(path: str, diagnosis: Diagnosis) -> None:
    if diagnosis.healthy:
        word = "looks healthy" if diagnosis.signs.get("step_s") is not None else "says too little"
        typer.echo(f"{path} {word}: {diagnosis}")
        return
    typer.echo(f"{path}: {diagnosis}")
    for number, verdict in enumerate(diagnosis.verdicts, start=1):
        typer.echo(f"\n{number}. {verdict.kind}: {verdict.sentence}")
        typer.echo(f"   see: {verdict.query.replace('RUN', path)}")
        typer.echo(f"   try: {verdict.advice}")
