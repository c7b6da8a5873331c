"""`hookyard average`: averaged weights of a finished training."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.output import echo, print_json, print_table, stdout_to_stderr

if TYPE_CHECKING:
    from orchestrator.runs.averaging import Average


def average(
    run: options.OneRun,
    std: Annotated[
        float,
        typer.Option(
            metavar="STD", help="Standard deviation of the window, as a fraction of training: 0.07"
        ),
    ],
    at: Annotated[
        int | None,
        typer.Option(metavar="STEP", min=1, help="Step of the snapshot; the newest by default."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File to write; as safetensors if its name ends in .safetensors."
        ),
    ] = None,
    hook: Annotated[
        str | None, typer.Option(metavar="NAME", help="The ema hook, if the run has several.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Average the weights of a finished training, over as many of its steps as you choose.

    Uses the snapshots that `ema: {average: power}` kept.

    Example: hookyard average runs/spirals --std 0.07
    """
    from orchestrator.runs.averaging import AVERAGES
    from orchestrator.runs.result import open_run
    from orchestrator.storage import Storage

    with stdout_to_stderr():
        opened = open_run(run)
        averaged = opened.average(std, at, hook)
        file = opened.folder.storage / AVERAGES / f"{averaged.checkpoint}-std-{std:g}.pt"
        if output:
            file = Storage(output)
        averaged.save(file)
    if as_json:
        print_json({"file": str(file), **averaged.summary()})
        return

    _print_terms(averaged)
    echo(f"wrote {file}")
    checkpoint = shlex.quote(f"{opened.folder}@{averaged.checkpoint}")
    change = f"init.from={shlex.quote(str(file))}"
    echo(f"To evaluate it: hookyard evaluate {checkpoint} {change}")


def _print_terms(averaged: Average) -> None:
    """Print the snapshots that an average is made of, and how near it comes to its window."""
    rows = []
    for term in averaged.terms:
        rows.append((term.checkpoint, term.step, f"{term.std:g}", f"{term.factor:+.4f}"))
    print_table(("snapshot", "step", "std", "factor"), rows)
    echo(
        f"average of std {averaged.std:g} at step {averaged.step}; relative error of its profile:"
        f" {averaged.error:.2g}"
    )
