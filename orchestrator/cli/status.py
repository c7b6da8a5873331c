"""`hookyard status JOB`"""

from __future__ import annotations

from dataclasses import asdict

import typer

from orchestrator.cli.options import AsJson, Dashboard, JobName
from orchestrator.cli.output import print_json


def status(job: JobName, address: Dashboard = None, as_json: AsJson = False) -> None:
    """Says how a job fares that was sent to a cluster."""
    from orchestrator.cluster.jobs import Jobs

    found = Jobs(address).status(job)
    if as_json:
        return print_json(asdict(found))
    ended = "" if found.exit_code is None else f", exit code {found.exit_code}"
    typer.echo(f"{found.job}: {found.status}{ended}")
    typer.echo(f"runs {found.entrypoint}")
    return typer.echo(found.message) if found.message else None
