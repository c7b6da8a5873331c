"""`hookyard submit CONFIG [key=value ...] --address URL`, `hookyard submit CONFIG --kuberay --image IMAGE >
job.yaml`"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.errors import FAILED, INTERRUPTED
from orchestrator.cli.options import Config, Dashboard, Name, Overrides, StorageFlag
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.cluster.job import Job
    from orchestrator.cluster.jobs import Jobs


def submit(
    config: Config,
    overrides: Overrides = None,
    address: Dashboard = None,
    storage: StorageFlag = "runs",
    name: Name = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job's name and leave; it goes on.")] = False,
    kuberay: Annotated[
        bool, typer.Option("--kuberay", help="Print a RayJob for kubectl apply, and send nothing.")
    ] = False,
    image: Annotated[
        str | None,
        typer.Option("--image", help="With --kuberay: what pods run; it holds the project and the experiment."),
    ] = None,
) -> None:
    """Sends a run or a sweep, with the folder it is called in, to a cluster; follows it there, and ends as it ends."""
    from orchestrator.cluster.job import make_job
    from orchestrator.config.load import load_experiment

    if kuberay != (image is not None):
        raise UsageError(
            "--kuberay needs an --image, as nothing is sent: pods run what their image holds; without --kuberay there"
            " is none"
        )
    experiment = load_experiment(config, overrides or [])
    job = make_job(experiment, config, overrides or [], storage, name, Path.cwd())
    if image is not None:
        return _print_manifest(job, image)
    return _send(job, address, detach)


def _print_manifest(job: Job, image: str) -> None:
    from importlib.metadata import version

    from orchestrator.cluster.kuberay import SECRET, make_manifest
    from orchestrator.config.text.reader import dump_yaml

    typer.echo(dump_yaml(make_manifest(job, image, version("ray"))), nl=False)
    if job.experiment.environment:
        literals = " ".join(f"--from-literal={name}=..." for name in job.experiment.environment)
        typer.echo(
            f"It reads its environment from a secret: kubectl create secret generic {SECRET} {literals}", err=True
        )


def _send(job: Job, address: str | None, detach: bool) -> None:
    from orchestrator.cluster.jobs import Jobs

    jobs = Jobs(address)
    typer.echo(f"sending {Path.cwd()}, without what .gitignore and .rayignore exclude", err=True)
    submitted = jobs.submit(job, Path.cwd())
    if detach:
        typer.echo(submitted)
        return typer.echo(f"Follow it: hookyard logs {submitted} --follow --address {jobs.address}", err=True)
    typer.echo(f"submitted {submitted}", err=True)
    return follow(jobs, submitted)


def follow(jobs: Jobs, job: str) -> None:
    """Shows a job's log until it is over, and exits as it did. Ctrl-C asks whether to stop it or to look away."""
    try:
        status = jobs.follow(job, partial(typer.echo, nl=False))
    except KeyboardInterrupt:
        if not is_to_be_stopped(job):
            typer.echo(f"{job} goes on. Look again: hookyard logs {job} --follow --address {jobs.address}", err=True)
            raise typer.Exit(INTERRUPTED) from None
        jobs.stop(job)
        status = jobs.follow(job, lambda text: None)
    typer.echo(f"{job}: {status.status}{f', {status.message}' if status.message else ''}", err=True)
    if status.status == "STOPPED":
        raise typer.Exit(INTERRUPTED)
    if status.status == "FAILED":
        raise typer.Exit(status.exit_code or FAILED)


def is_to_be_stopped(job: str) -> bool:
    """Whether the job is to be stopped; where nobody can be asked, it goes on."""
    if not sys.stdin.isatty():
        return False
    try:
        return typer.confirm(f"\nStop {job}? (no: it goes on, and you only look away)", default=False, err=True)
    except (typer.Abort, KeyboardInterrupt):
        return False
