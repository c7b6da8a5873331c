"""`hookyard run CONFIG [key=value ...]`"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.errors import INTERRUPTED
from orchestrator.cli.output import echo, print_json, talk
from orchestrator.cli.show import brief, show_brief
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.config.sections.experiment import Experiment
    from orchestrator.runs.result import Run


def run(
    config: Annotated[
        str,
        typer.Argument(
            help="An experiment file; or RUN@best, RUN@last, RUN@CHECKPOINT to train a run, or a sweep's best, longer."
        ),
    ],
    overrides: options.Overrides = None,
    storage: options.StorageFlag = "runs",
    name: options.Name = None,
    address: options.Address = None,
    engine: options.Engine = None,
    local: options.Local = False,
    pdb: Annotated[bool, typer.Option("--pdb", help="With --local: where the run fails, Python's debugger.")] = False,
    skip_preflight: options.SkipPreflight = False,
    plan: options.PlanOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Runs an experiment, or goes on from a checkpoint of another run: on Ray Train workers, or in this process with
    --local."""
    from orchestrator.cli.post_mortem import post_mortem, refuse_without_terminal

    in_process = local or engine == "in-process"
    if pdb:
        refuse_without_terminal(in_process)
    experiment = _experiment(config, overrides or [])
    if plan:
        from orchestrator.cli.plan import show_plan

        return show_plan(experiment, storage, name, as_json, address)
    from orchestrator.cluster.preflight import preflight
    from orchestrator.runs import driver

    with post_mortem(pdb), talk(), preflight(address, storage, experiment, skip=in_process or skip_preflight):
        done = driver.run(experiment, storage, name, engine=engine, local=local, address=address)
    return finish(done, as_json)


def _experiment(config: str, overrides: list[str]) -> Experiment:
    """What an experiment file says, or what a run is that goes on from `RUN@CHECKPOINT`."""
    from orchestrator.config.load import load_experiment
    from orchestrator.records.run_folder import RunFolder

    path, at, label = config.rpartition("@")
    if Path(config).is_file() or not at or "/" in label:
        if not config.endswith((".yaml", ".yml")) and (folder := RunFolder(config)).exists():
            command = f"hookyard run {shlex.quote(f'{folder}@best')}"
            raise UsageError(
                f"{folder} is a run, not an experiment file. To go on from its best checkpoint as a new run: {command}"
            )
        return load_experiment(config, overrides)
    folder = RunFolder.open(path)
    if not folder.metadata().sweep:
        from orchestrator.runs.result import Run

        return Run(folder).continued(label, overrides)
    from orchestrator.sweeps.results.result import open_sweep

    return open_sweep(path).best.continued(label, overrides)


def finish(done: Run, as_json: bool) -> None:
    """Prints what a run made and how to look at it; exits with 130 where it was interrupted."""
    if as_json:
        print_json(brief(done.folder))
    else:
        show_brief(done.folder)
        path = shlex.quote(done.path)
        hints = [f"hookyard stats {path} --by rank", f"hookyard report {path}"]
        if "tensorboard" in done.folder.storage.names():
            hints.append(f"tensorboard --logdir {path}")
        echo(f"Look at it: {'   or   '.join(hints)}", err=True)
    if done.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
