"""`hookyard evaluate RUN[@CHECKPOINT] [key=value ...]`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli import options
from orchestrator.cli.completion import run_folders
from orchestrator.cli.output import talk
from orchestrator.cli.run import finish

if TYPE_CHECKING:
    from orchestrator.runs.result import Run


def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            help="The folder of a run, or of a sweep for its best; with @best (which is meant), @last or @CHECKPOINT.",
            autocompletion=run_folders,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Laid over the run's experiment: loader.eval_batch_size=512"),
    ] = None,
    phase: Annotated[Literal["val", "test"], typer.Option("--phase", help="On which data.")] = "val",
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="On another number of ranks.")] = None,
    address: options.Address = None,
    engine: options.Engine = None,
    local: options.Local = False,
    skip_preflight: options.SkipPreflight = False,
    as_json: options.AsJson = False,
) -> None:
    """Measures a stored checkpoint as its run does: a report and rows of their own, in the run's folder, on the run's
    engine or another."""
    found, label = _found(run)
    from orchestrator.cluster.preflight import preflight
    from orchestrator.runs.evaluation import Evaluation
    from orchestrator.runs.result import Run

    evaluation = Evaluation.of(found.folder, label, phase, overrides or [], workers)
    in_process = local or engine == "in-process" or (engine is None and found.folder.launched().local)
    with (
        talk(),
        preflight(address, found.folder.location, evaluation.experiment, skip=in_process or skip_preflight),
    ):
        folder = evaluation.start(engine, address, local=local)
    finish(Run(folder), as_json)


def _found(given: str) -> tuple[Run, str]:
    """The run that is meant, of a sweep its best trial, and the label of the checkpoint."""
    from orchestrator.records.run_folder import RunFolder, nothing_started
    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep

    path, at, label = given.rpartition("@")
    with nothing_started():
        if not at or "/" in label or RunFolder(given).exists():
            path, label = given, "best"
        folder = RunFolder.open(path)
        return (Sweep(folder).best if folder.metadata().sweep else Run(folder)), label
