"""`hookyard status`, `hookyard logs` and `hookyard stop`: jobs of a Ray cluster or of Slurm."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.errors import FAILED, INTERRUPTED
from orchestrator.cli.options import AsJson
from orchestrator.cli.output import print_json
from orchestrator.cluster.job_status import ENDED

if TYPE_CHECKING:
    from orchestrator.cluster.jobs import Jobs
    from orchestrator.cluster.slurm import SlurmJobs

Dashboard = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The cluster's dashboard, such as http://127.0.0.1:8265; RAY_API_SERVER_ADDRESS by default.",
    ),
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's name, or its number in Slurm, as `submit` printed it."
    ),
]


def open_jobs(job: str, address: str | None) -> Jobs | SlurmJobs:
    """Return the jobs among which one is: those of Slurm for a number without an address."""
    if job.isdecimal() and address is None:
        from orchestrator.cluster.slurm import SlurmJobs

        return SlurmJobs()

    from orchestrator.cluster.jobs import Jobs

    return Jobs(address)


def status(job: JobName, address: Dashboard = None, as_json: AsJson = False) -> None:
    """Show the status of a job.

    Example: hookyard status JOB --address http://head:8265
    """
    details = open_jobs(job, address).status(job)
    if as_json:
        return print_json(details)

    text = f"{details.job}: {details.status}"
    if details.exit_code is not None:
        text += f", exit code {details.exit_code}"
    typer.echo(text)
    typer.echo(f"command: {details.entrypoint}")
    if details.message:
        typer.echo(details.message)
    return None


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
    jobs = open_jobs(job, address)
    if follow:
        return follow_job(jobs, job)
    return typer.echo(jobs.log(job), nl=False)


def stop(job: JobName, address: Dashboard = None) -> None:
    """Stop a job. Its run can be resumed.

    Example: hookyard stop JOB --address http://head:8265
    """
    jobs = open_jobs(job, address)
    status = jobs.status(job).status
    if status in ENDED:
        typer.echo(f"{job} has already ended: {status}", err=True)
        return
    jobs.stop(job)
    typer.echo(f"stopping {job}. To see its status: hookyard status {job}{jobs.flags}", err=True)


def follow_job(jobs: Jobs | SlurmJobs, job: str) -> None:
    """Print a job's log until it ends, and exit with its exit code. Ctrl-C leaves the job
    running."""
    try:
        status = jobs.follow(job, partial(typer.echo, nl=False))
    except KeyboardInterrupt:
        typer.echo(
            f"{job} continues. To follow it again: hookyard logs {job} --follow{jobs.flags}\n"
            f"To stop it: hookyard stop {job}{jobs.flags}",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None

    text = f"{job}: {status.status}"
    if status.message:
        text += f", {status.message}"
    typer.echo(text, err=True)
    if status.status == "STOPPED":
        raise typer.Exit(INTERRUPTED)
    if status.status == "FAILED":
        raise typer.Exit(status.exit_code or FAILED)
