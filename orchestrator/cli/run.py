"""`hookyard run CONFIG [key=value ...]`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.errors import INTERRUPTED
from orchestrator.cli.output import print_json, talk
from orchestrator.cli.show import brief, show_brief

if TYPE_CHECKING:
    from orchestrator.runs.result import Run


def run(
    config: options.Config,
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
    """Runs an experiment: on Ray Train workers, or in this process with --local."""
    from orchestrator.cli.post_mortem import post_mortem, refuse_without_terminal
    from orchestrator.config.load import load_experiment

    in_process = local or engine == "in-process"
    if pdb:
        refuse_without_terminal(in_process)
    experiment = load_experiment(config, overrides or [])
    if plan:
        from orchestrator.cli.plan import show_plan

        return show_plan(experiment, storage, name, as_json, address)
    from orchestrator.cluster.preflight import checked_cluster
    from orchestrator.runs import driver

    with post_mortem(pdb), talk(), checked_cluster(address, storage, experiment, skip=in_process or skip_preflight):
        done = driver.run(experiment, storage, name, engine=engine, local=local, address=address)
    return finish(done, as_json)


def finish(done: Run, as_json: bool) -> None:
    """Prints what a run made and how to look at it; exits with 130 where it was interrupted."""
    if as_json:
        print_json(brief(done.folder))
    else:
        show_brief(done.folder)
        hints = [f"hookyard stats {done.path} --by rank", f"hookyard report {done.path}"]
        if "tensorboard" in done.folder.storage.names():
            hints.append(f"tensorboard --logdir {done.path}")
        typer.echo(f"Look at it: {'   or   '.join(hints)}", err=True)
    if done.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
