"""`hookyard submit`: a run or a sweep as a job of a Ray cluster or of Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.job_access import Dashboard, follow_job
from orchestrator.cli.options import Config, Name, Overrides, StorageFlag
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.cluster.jobs import Jobs
    from orchestrator.cluster.slurm import SlurmJobs
    from orchestrator.cluster.submission import Submission

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
    if slurm:
        if address:
            raise UsageError("--address belongs to a Ray cluster; remove it or --slurm")
        return _submit_to_slurm(submission, allocation, print_script, detach)

    flags = [*allocation]
    if print_script:
        flags.append("print")
    _refuse_slurm_flags(flags)
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
