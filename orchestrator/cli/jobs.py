"""`hookyard submit`, `hookyard status`, `hookyard logs` and `hookyard stop`: runs as jobs of a
cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.errors import FAILED, INTERRUPTED
from orchestrator.cli.options import AsJson, Config, Name, Overrides, StorageFlag
from orchestrator.cli.output import print_json

if TYPE_CHECKING:
    from orchestrator.cluster.jobs import Jobs

Dashboard = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The cluster's dashboard, such as http://127.0.0.1:8265; RAY_API_SERVER_ADDRESS by default.",
    ),
]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's name, as `submit` printed it.")
]


def submit(
    config: Config,
    overrides: Overrides = None,
    address: Dashboard = None,
    storage: StorageFlag = "runs",
    name: Name = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the job's name and return at once.")
    ] = False,
) -> None:
    """Send a run or sweep and the current folder to a cluster, and follow the job's log.

    Exits with the exit code of the job.

    Example: hookyard submit spirals.yaml --address http://head:8265
    """
    from orchestrator.cluster.jobs import Jobs, make_job
    from orchestrator.experiment.load import load_experiment

    experiment = load_experiment(config, overrides or [])
    job = make_job(experiment, config, overrides or [], storage, name, Path.cwd())
    jobs = Jobs(address)
    typer.echo(f"sending {Path.cwd()}, without what .gitignore and .rayignore exclude", err=True)
    submitted = jobs.submit(job, Path.cwd())
    if detach:
        typer.echo(submitted)
        return typer.echo(
            f"To follow it: hookyard logs {submitted} --follow --address {jobs.address}", err=True
        )
    typer.echo(f"submitted {submitted}", err=True)
    return follow_job(jobs, submitted)


def status(job: JobName, address: Dashboard = None, as_json: AsJson = False) -> None:
    """Show the status of a job.

    Example: hookyard status JOB --address http://head:8265
    """
    from orchestrator.cluster.jobs import Jobs

    details = Jobs(address).status(job)
    if as_json:
        return print_json(details)
    exit_code = "" if details.exit_code is None else f", exit code {details.exit_code}"
    typer.echo(f"{details.job}: {details.status}{exit_code}")
    typer.echo(f"command: {details.entrypoint}")
    return typer.echo(details.message) if details.message else None


def logs(
    job: JobName,
    address: Dashboard = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print until the job ends; exit with its code.")
    ] = False,
) -> None:
    """Print the log of a job.

    Example: hookyard logs JOB --address http://head:8265 --follow
    """
    from orchestrator.cluster.jobs import Jobs

    jobs = Jobs(address)
    if follow:
        return follow_job(jobs, job)
    return typer.echo(jobs.log(job), nl=False)


def stop(job: JobName, address: Dashboard = None) -> None:
    """Stop a job. Its run can be resumed.

    Example: hookyard stop JOB --address http://head:8265
    """
    from orchestrator.cluster.jobs import Jobs

    jobs = Jobs(address)
    jobs.stop(job)
    typer.echo(
        f"stopping {job}. To see its status: hookyard status {job} --address {jobs.address}",
        err=True,
    )


def follow_job(jobs: Jobs, job: str) -> None:
    """Print a job's log until it ends, and exit with its exit code. Ctrl-C leaves the job
    running."""
    try:
        status = jobs.follow(job, partial(typer.echo, nl=False))
    except KeyboardInterrupt:
        typer.echo(
            f"{job} continues. To follow it again: hookyard logs {job} --follow --address {jobs.address}\n"
            f"To stop it: hookyard stop {job} --address {jobs.address}",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"{job}: {status.status}{f', {status.message}' if status.message else ''}", err=True)
    if status.status == "STOPPED":
        raise typer.Exit(INTERRUPTED)
    if status.status == "FAILED":
        raise typer.Exit(status.exit_code or FAILED)
