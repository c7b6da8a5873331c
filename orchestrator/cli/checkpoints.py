"""`hookyard evaluate`, `hookyard predict` and `hookyard average`"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli import options
from orchestrator.cli.output import echo, print_json, print_table, stdout_to_stderr
from orchestrator.cli.training import finish_run, run_or_best_trial

if TYPE_CHECKING:
    from orchestrator.disk.metadata import EngineName
    from orchestrator.runs.evaluation import EvaluationJob
    from orchestrator.runs.result import Run


_RunAndCheckpoint = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@CHECKPOINT]",
        help="A run, or a sweep for its best trial. The checkpoint is `best` (default), `last` or a name.",
        autocompletion=options.complete_runs,
    ),
]
_Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Values to change: loader.eval_batch_size=512"),
]
_Workers = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Number of ranks; the run's by default.")
]


def evaluate(
    run: _RunAndCheckpoint,
    overrides: _Overrides = None,
    phase: Annotated[Literal["val", "test"], typer.Option(help="The data to evaluate on.")] = "val",
    workers: _Workers = None,
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
    evaluated, label = _run_and_checkpoint(run)
    from orchestrator.runs.evaluation import EvaluationJob

    evaluation = EvaluationJob.prepare(evaluated.folder, label, phase, overrides or [], workers)
    _start(evaluation, engine, address, local, skip_preflight, as_json)


def predict(
    run: _RunAndCheckpoint,
    overrides: _Overrides = None,
    phase: Annotated[
        str, typer.Option(help="The data to predict: val, test, or a name such as val/noisy.")
    ] = "val",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="A function that returns another dataset to predict."
        ),
    ] = None,
    workers: _Workers = None,
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
    predicted, label = _run_and_checkpoint(run)
    from orchestrator.runs.prediction import PredictionJob

    prediction = PredictionJob.prepare_for(
        predicted.folder, data, label, phase, overrides or [], workers
    )
    _start(prediction, engine, address, local, skip_preflight, as_json)


def _start(
    evaluation: EvaluationJob,
    engine: EngineName | None,
    address: str | None,
    local: bool,
    skip_preflight: bool,
    as_json: bool,
) -> None:
    """Run an evaluation, and print its results."""
    from orchestrator.cluster.preflight import preflight
    from orchestrator.runs.result import Run

    folder = evaluation.run
    in_process = (
        local or engine == "in-process" or (engine is None and folder.read_launch_metadata().local)
    )
    skip = in_process or skip_preflight
    with (
        stdout_to_stderr(),
        preflight(address, folder.location, evaluation.experiment, skip=skip),
    ):
        evaluation_folder = evaluation.start(engine, address, local=local)
    finish_run(Run(evaluation_folder), as_json)


def _run_and_checkpoint(argument: str) -> tuple[Run, str]:
    """Return the run, or a sweep's best trial, and the label of the checkpoint."""
    from orchestrator.disk.run_folder import RunFolder, errors_before_start

    path, at, label = argument.rpartition("@")
    with errors_before_start():
        if not at or "/" in label or RunFolder(argument).exists():
            path = argument
            label = "best"
        return run_or_best_trial(RunFolder.open(path)), label


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
        file = (
            Storage(output)
            if output
            else opened.folder.storage / AVERAGES / f"{averaged.checkpoint}-std-{std:g}.pt"
        )
        averaged.save(file)
    if as_json:
        return print_json({"file": str(file), **averaged.summary()})
    rows = [
        (term.checkpoint, term.step, f"{term.std:g}", f"{term.factor:+.4f}")
        for term in averaged.terms
    ]
    print_table(("snapshot", "step", "std", "factor"), rows)
    echo(
        f"average of std {std:g} at step {averaged.step}; relative error of its profile: {averaged.error:.2g}"
    )
    echo(f"wrote {file}")
    checkpoint = shlex.quote(f"{opened.folder}@{averaged.checkpoint}")
    return echo(
        f"To evaluate it: hookyard evaluate {checkpoint} init.from={shlex.quote(str(file))}"
    )
