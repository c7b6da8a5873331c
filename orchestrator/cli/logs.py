"""`hookyard logs JOB [--follow]`"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import Dashboard, JobName
from orchestrator.cli.submit import follow as follow_job


def logs(
    job: JobName,
    address: Dashboard = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job is over, and exit as it did.")] = False,
) -> None:
    """Prints what a job has written."""
    from orchestrator.cluster.jobs import Jobs

    jobs = Jobs(address)
    if follow:
        return follow_job(jobs, job)
    return typer.echo(jobs.log(job), nl=False)
