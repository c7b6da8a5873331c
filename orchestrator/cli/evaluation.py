"""The arguments of `hookyard evaluate` and `hookyard predict`, and how both start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.finish import finish_run
from orchestrator.cli.output import stdout_to_stderr
from orchestrator.cli.stored_run import choose_run, split_checkpoint

if TYPE_CHECKING:
    from orchestrator.disk.metadata import EngineName
    from orchestrator.runs.inference_job import InferenceJob
    from orchestrator.runs.result import Run

RunAndCheckpoint = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@CHECKPOINT]",
        help="A run, or a sweep for its best trial. The checkpoint is `best` (default), `last` or a name.",
        autocompletion=options.complete_runs,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Values to change: loader.eval_batch_size=512"),
]
Workers = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Number of ranks; the run's by default.")
]


def open_run_and_checkpoint(argument: str) -> tuple[Run, str]:
    """Return the run, or a sweep's best trial, and the label of the checkpoint."""
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.errors import errors_before_start

    with errors_before_start():
        checkpoint = split_checkpoint(argument)
        if checkpoint is None or RunFolder(argument).exists():
            return choose_run(RunFolder.open(argument)), "best"
        path, label = checkpoint
        return choose_run(RunFolder.open(path)), label


def start_evaluation(
    evaluation: InferenceJob,
    engine: EngineName | None,
    address: str | None,
    local: bool,
    skip_preflight: bool,
    as_json: bool,
) -> None:
    """Run an evaluation or a prediction, and print its results."""
    from orchestrator.cluster.preflight import preflight
    from orchestrator.disk.sweep_folder import read_launch_metadata
    from orchestrator.runs.result import Run

    run = evaluation.run
    in_process = local or engine == "in-process"
    if engine is None and read_launch_metadata(run).local:
        in_process = True

    skip = in_process or skip_preflight
    checks = preflight(address, run.location, evaluation.experiment, skip=skip)
    with stdout_to_stderr(), checks:
        folder = evaluation.start(engine, address, local=local)
    finish_run(Run(folder), as_json)
