"""`hookyard evaluate`: a stored checkpoint on the data of `val` or `test`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from orchestrator.cli import options
from orchestrator.cli.evaluation import (
    Overrides,
    RunAndCheckpoint,
    Workers,
    open_run_and_checkpoint,
    start_evaluation,
)


def evaluate(
    run: RunAndCheckpoint,
    overrides: Overrides = None,
    phase: Annotated[Literal["val", "test"], typer.Option(help="The data to evaluate on.")] = "val",
    workers: Workers = None,
    address: options.Address = None,
    engine: options.Engine = None,
    local: options.Local = False,
    skip_preflight: options.SkipPreflight = False,
    as_json: options.AsJson = False,
) -> None:
    """Evaluate a stored checkpoint on `val` or `test`.

    The report and the rows go to a folder of their own inside the run.

    Example: hookyard evaluate runs/spirals@best --phase val
    """
    from orchestrator.runs.evaluation import prepare_evaluation

    evaluated, label = open_run_and_checkpoint(run)
    evaluation = prepare_evaluation(evaluated.folder, label, phase, overrides or [], workers)
    start_evaluation(evaluation, engine, address, local, skip_preflight, as_json)
