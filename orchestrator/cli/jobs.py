"""`hookyard status`, `hookyard logs` and `hookyard stop`: jobs of a Ray cluster or of Slurm."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.job_access import Dashboard, JobName, follow_job, open_jobs
from orchestrator.cli.options import AsJson
from orchestrator.cli.output import print_json
from orchestrator.cluster.job_status import ENDED


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
