"""`hookyard stop JOB`"""

from __future__ import annotations

import typer

from orchestrator.cli.options import Dashboard, JobName


def stop(job: JobName, address: Dashboard = None) -> None:
    """Stops a job that was sent to a cluster; its run can be resumed."""
    from orchestrator.cluster.jobs import Jobs

    jobs = Jobs(address)
    jobs.stop(job)
    typer.echo(f"{job} is asked to end. See: hookyard status {job} --address {jobs.address}", err=True)
