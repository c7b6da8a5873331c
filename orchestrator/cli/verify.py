"""`hookyard verify`: whether training continues bit for bit from its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from orchestrator.cli.errors import FAILED
from orchestrator.cli.options import AsJson, Config, Overrides
from orchestrator.cli.output import echo, print_json, stdout_to_stderr
from orchestrator.units import format_count

if TYPE_CHECKING:
    from orchestrator.replay.verify import Continuation


def verify(config: Config, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Train a few steps, continue from checkpoints in fresh processes, and name what differs.

    Nothing is written. Exits with 1 if training from a checkpoint is not bit-for-bit the same, and
    with 2 if the experiment cannot be verified.

    Example: hookyard verify spirals.yaml
    """
    from orchestrator.experiment.load import load_experiment
    from orchestrator.process.interrupts import interrupt_at_sigterm
    from orchestrator.replay.verify import summarize
    from orchestrator.replay.verify import verify as continue_training

    with stdout_to_stderr(), interrupt_at_sigterm():
        continuations = list(continue_training(load_experiment(config, overrides or [])))
    if as_json:
        print_json(summarize(continuations))
    else:
        for continuation in continuations:
            _print_continuation(continuation)
    if any(continuation.difference for continuation in continuations):
        raise typer.Exit(FAILED)


def _print_continuation(continuation: Continuation) -> None:
    start = f"from {continuation.checkpoint} ({_describe_start(continuation)})"
    if not continuation.difference:
        echo(f"{start}: the same samples, losses, weights, optimizer and random states")
        return

    echo(f"{start}: {continuation.difference}")
    for cause in continuation.causes:
        echo(f"  {cause}")


def _describe_start(continuation: Continuation) -> str:
    text = f"iteration {continuation.iteration}"
    workers = continuation.loader_workers
    if workers:
        text += f", {format_count(workers, 'DataLoader worker')}"
    return text
