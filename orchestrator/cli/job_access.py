"""The job that a subcommand names: where it runs, and its log until it ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.errors import FAILED, INTERRUPTED

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


def follow_job(jobs: Jobs | SlurmJobs, job: str) -> None:
    """Print a job's log until it ends, and exit with its exit code. Ctrl-C leaves the job
    running."""
    try:
        end = jobs.follow(job, partial(typer.echo, nl=False))
    except KeyboardInterrupt:
        typer.echo(
            f"{job} continues. To follow it again: hookyard logs {job} --follow{jobs.flags}\n"
            f"To stop it: hookyard stop {job}{jobs.flags}",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None

    text = f"{job}: {end.status}"
    if end.message:
        text += f", {end.message}"
    typer.echo(text, err=True)
    if end.status == "STOPPED":
        raise typer.Exit(INTERRUPTED)
    if end.status == "FAILED":
        raise typer.Exit(end.exit_code or FAILED)
