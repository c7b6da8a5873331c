"""`hookyard status JOB`"""

from __future__ import annotations

from dataclasses import asdict

import typer

from orchestrator.cli.options import AsJson, Dashboard, JobName
from orchestrator.cli.output import print_json


def status(job: JobName, address: Dashboard = None, as_json: AsJson = False) -> None:
    """Says how a job fares that was sent to a cluster."""
    from orchestrator.cluster.jobs import Jobs

    told = Jobs(address).status(job)
    if as_json:
        return print_json(asdict(told))
    ended = "" if told.exit_code is None else f", exit code {told.exit_code}"
    typer.echo(f"{told.job}: {told.status}{ended}")
    typer.echo(f"runs {told.entrypoint}")
    return typer.echo(told.message) if told.message else None
