"""`hookyard submit`, `hookyard status`, `hookyard logs` and `hookyard stop`: runs as jobs of a Ray
cluster or of Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.errors import FAILED, INTERRUPTED
from orchestrator.cli.options import AsJson, Config, Name, Overrides, StorageFlag
from orchestrator.cli.output import print_json
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.cluster.jobs import Jobs
    from orchestrator.cluster.slurm import SlurmJobs
    from orchestrator.cluster.submission import Submission

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
_slurm_option = partial(typer.Option, rich_help_panel="Slurm")
_Slurm = Annotated[
    bool,
    _slurm_option("--slurm", help="Submit to Slurm, whose nodes must share the current folder."),
]
_PrintScript = Annotated[
    bool, _slurm_option("--print", help="Print the job's script instead of submitting it.")
]
_Partition = Annotated[
    str | None, _slurm_option(metavar="NAME", help="Partition; Slurm's default otherwise.")
]
_Nodes = Annotated[
    int | None, _slurm_option(metavar="N", min=1, help="Number of nodes; 1 by default.")
]
_GpusPerNode = Annotated[int | None, _slurm_option(metavar="N", min=0, help="GPUs on each node.")]
_CpusPerTask = Annotated[
    int | None,
    _slurm_option(
        metavar="N",
        min=1,
        help="CPUs on each node; by default as many as the ranks of a run or a trial need.",
    ),
]
_Time = Annotated[
    str | None,
    _slurm_option(
        metavar="TIME",
        help="Limit, such as 08:00:00. The run saves before it, and the job is requeued.",
    ),
]
_Account = Annotated[str | None, _slurm_option(metavar="NAME", help="Account that is charged.")]
_Qos = Annotated[str | None, _slurm_option(metavar="NAME", help="Quality of service.")]
_Sbatch = Annotated[
    list[str] | None,
    _slurm_option(
        metavar="OPTION", help="Any other option of sbatch: --sbatch=--mem=64G. Repeatable."
    ),
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
    slurm: _Slurm = False,
    print_script: _PrintScript = False,
    partition: _Partition = None,
    nodes: _Nodes = None,
    gpus_per_node: _GpusPerNode = None,
    cpus_per_task: _CpusPerTask = None,
    time: _Time = None,
    account: _Account = None,
    qos: _Qos = None,
    sbatch: _Sbatch = None,
) -> None:
    """Send a run or sweep to a Ray cluster or to Slurm, and follow the job's log.

    A Ray cluster receives the current folder. Exits with the exit code of the job.

    Example: hookyard submit spirals.yaml --address http://head:8265
    """
    from orchestrator.cluster.submission import Submission

    submission = Submission.load(config, overrides or [], storage, name)
    options = {
        "partition": partition,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "cpus_per_task": cpus_per_task,
        "time": time,
        "account": account,
        "qos": qos,
        "sbatch": sbatch,
    }
    allocation = {option: value for option, value in options.items() if value is not None}
    if slurm and address:
        raise UsageError("--address belongs to a Ray cluster; remove it or --slurm")
    if slurm:
        return _submit_to_slurm(submission, allocation, print_script, detach)
    _refuse_slurm_flags([*allocation, "print"] if print_script else [*allocation])
    return _submit_to_ray(submission, address, detach)


def _submit_to_slurm(
    submission: Submission, allocation: Mapping[str, Any], print_script: bool, detach: bool
) -> None:
    from orchestrator.cluster.slurm import SlurmJobs
    from orchestrator.cluster.slurm_script import Allocation, make_script

    script = make_script(submission, Allocation(**allocation))
    if print_script:
        return typer.echo(script, nl=False)
    jobs = SlurmJobs()
    return _finish_submission(jobs, jobs.submit(script), detach)


def _refuse_slurm_flags(options: list[str]) -> None:
    """Raise UsageError if there are options that only Slurm has."""
    if options:
        flags = [f"--{option.replace('_', '-')}" for option in options]
        needs = "needs" if len(flags) == 1 else "need"
        raise UsageError(f"{', '.join(flags)} {needs} --slurm")


def _submit_to_ray(submission: Submission, address: str | None, detach: bool) -> None:
    from orchestrator.cluster.job import make_job
    from orchestrator.cluster.jobs import Jobs

    folder = Path.cwd()
    job = make_job(submission, folder)
    jobs = Jobs(address)
    typer.echo(f"sending {folder}, without what .gitignore and .rayignore exclude", err=True)
    _finish_submission(jobs, jobs.submit(job, folder), detach)


def _finish_submission(jobs: Jobs | SlurmJobs, job: str, detach: bool) -> None:
    """Follow a job that was submitted, or print its name and how to follow it."""
    if detach:
        typer.echo(job)
        return typer.echo(f"To follow it: hookyard logs {job} --follow{jobs.flags}", err=True)
    typer.echo(f"submitted {job}", err=True)
    return follow_job(jobs, job)


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
    jobs = open_jobs(job, address)
    if follow:
        return follow_job(jobs, job)
    return typer.echo(jobs.log(job), nl=False)


def stop(job: JobName, address: Dashboard = None) -> None:
    """Stop a job. Its run can be resumed.

    Example: hookyard stop JOB --address http://head:8265
    """
    jobs = open_jobs(job, address)
    jobs.stop(job)
    typer.echo(
        f"stopping {job}. To see its status: hookyard status {job}{jobs.flags}",
        err=True,
    )


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
    typer.echo(f"{job}: {status.status}{f', {status.message}' if status.message else ''}", err=True)
    if status.status == "STOPPED":
        raise typer.Exit(INTERRUPTED)
    if status.status == "FAILED":
        raise typer.Exit(status.exit_code or FAILED)
