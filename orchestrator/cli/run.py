"""`hookyard run`: an experiment, or a run that continues from a checkpoint."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.finish import finish_run
from orchestrator.cli.output import stdout_to_stderr
from orchestrator.cli.stored_run import choose_run, split_checkpoint
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.experiment.checked_experiment import CheckedExperiment


def run(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="An experiment file. RUN@best, RUN@last or RUN@CHECKPOINT continues a run, or a"
            " sweep's best trial.",
        ),
    ],
    overrides: options.Overrides = None,
    storage: options.StorageFlag = "runs",
    name: options.Name = None,
    if_exists: options.IfNameExists = "error",
    address: options.Address = None,
    engine: options.Engine = None,
    local: options.Local = False,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="With --local: open Python's debugger when the run fails.")
    ] = False,
    skip_preflight: options.SkipPreflight = False,
    plan: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Run an experiment, or continue from a checkpoint of another run.

    Training runs on Ray Train workers, or in this process with --local.

    Example: hookyard run spirals.yaml optimizer.lr=0.05 --name slower
    """
    from orchestrator.cli.debugger import check_terminal, post_mortem

    in_process = local or engine == "in-process"
    if pdb and not in_process:
        raise UsageError("--pdb debugs training in this process: add --local")
    if pdb:
        check_terminal()

    experiment = _load_experiment(config, overrides or [])
    if experiment.sweep:
        raise UsageError(
            f"{config} has a `sweep` section; use hookyard sweep {shlex.quote(config)}"
        )
    if plan:
        from orchestrator.cli.plan import make_plan
        from orchestrator.cli.plan_text import show_plan

        return show_plan(make_plan(experiment, storage, name, address, if_exists), as_json)

    from orchestrator.cluster.preflight import preflight
    from orchestrator.runs import start

    skip = in_process or skip_preflight
    with post_mortem(pdb), stdout_to_stderr(), preflight(address, storage, experiment, skip=skip):
        done = start.run(
            experiment,
            storage,
            name,
            engine=engine,
            local=local,
            address=address,
            if_exists=if_exists,
        )
    return finish_run(done, as_json)


def _load_experiment(config: str, overrides: list[str]) -> CheckedExperiment:
    """Load an experiment file, or the experiment that continues from `RUN@CHECKPOINT`."""
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.experiment.load import load_experiment

    checkpoint = split_checkpoint(config)
    if checkpoint and not Path(config).is_file():
        path, label = checkpoint
        return choose_run(RunFolder.open(path)).continue_from(label, overrides)

    if not config.endswith((".yaml", ".yml")):
        _refuse_run(RunFolder(config))
    return load_experiment(config, overrides)


def _refuse_run(folder: RunFolder) -> None:
    """Raise UsageError if a run was given as an experiment file."""
    if folder.exists():
        command = f"hookyard run {shlex.quote(f'{folder}@best')}"
        raise UsageError(
            f"{folder} is a run, not an experiment file. To continue its best checkpoint as a new"
            f" run: {command}"
        )
