"""`hookyard average RUN --std STD [--at STEP] [--out FILE]`"""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from orchestrator.cli.options import AsJson, OneRun
from orchestrator.cli.output import echo, print_json, print_table, talk


def average(
    run: OneRun,
    std: Annotated[float, typer.Option("--std", help="How wide the average is, in parts of the training: 0.07")],
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="STEP", min=1, help="At which snapshot; the newest where it is not said."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Where it is written; as safetensors where it ends so.")
    ] = None,
    hook: Annotated[
        str | None, typer.Option("--hook", help="Of which hook, where several keep power averages.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Makes the average of any width of a run's weights from the snapshots that `ema: {average: power}` kept, and
    writes them into a file."""
    from orchestrator.runs.averaging import AVERAGES
    from orchestrator.runs.result import open_run
    from orchestrator.storage import Storage

    with talk():
        found = open_run(run)
        made = found.average(std, at, hook)
        file = Storage(out) if out else found.folder.storage / AVERAGES / f"{made.checkpoint}-std-{std:g}.pt"
        made.save(file)
    if as_json:
        return print_json({"file": str(file), **made.described()})
    stds = list(dict.fromkeys(term.std for term in made.terms))
    factors = {(term.checkpoint, term.step, term.std): f"{term.factor:+.4f}" for term in made.terms}
    checkpoints = dict.fromkeys((term.checkpoint, term.step) for term in made.terms)
    print_table(
        ("snapshot", "step", *(f"std {one:g}" for one in stds)),
        [(*checkpoint, *(factors.get((*checkpoint, one), "") for one in stds)) for checkpoint in checkpoints],
    )
    echo(
        f"the sum is the average of std {std:g} at step {made.step}; its profile is off by {made.error:.2g} of its norm"
    )
    echo(f"wrote {file}")
    again = f"{found.path}@{made.checkpoint}"
    return echo(f"measure it: hookyard evaluate {shlex.quote(again)} init.from={shlex.quote(str(file))}")
