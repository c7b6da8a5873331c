"""`hookyard predict`: the outputs of a stored checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.evaluation import (
    Overrides,
    RunAndCheckpoint,
    Workers,
    open_run_and_checkpoint,
    start_evaluation,
)


def predict(
    run: RunAndCheckpoint,
    overrides: Overrides = None,
    phase: Annotated[
        str, typer.Option(help="The data to predict: val, test, or a name such as val/noisy.")
    ] = "val",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="A function that returns another dataset to predict."
        ),
    ] = None,
    workers: Workers = None,
    address: options.Address = None,
    engine: options.Engine = None,
    local: options.Local = False,
    skip_preflight: options.SkipPreflight = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the outputs of a stored checkpoint for each sample of a dataset.

    They go to Parquet files in a folder inside the run, in the order of the dataset.

    Example: hookyard predict runs/spirals@best --phase val
    """
    from orchestrator.runs.prediction import prepare_prediction

    predicted, label = open_run_and_checkpoint(run)
    prediction = prepare_prediction(predicted.folder, data, label, phase, overrides or [], workers)
    start_evaluation(prediction, engine, address, local, skip_preflight, as_json)
