"""The script of a Slurm job that runs an experiment."""

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cluster.submission import Submission, check_storage
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.taken_name import check_name_is_free
from orchestrator.engines.ray_environment import read_environment
from orchestrator.engines.resources import Resources
from orchestrator.errors import UsageError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.private_api.ray_settings import ADDRESS_FILE
from orchestrator.units import format_count

LEAD_S = 120
"""Seconds before the end of a job's time at which Slurm sends SIGUSR1, so that the run saves."""
_SCRIPT = Path(__file__).with_name("slurm_job.sh")


@dataclass(frozen=True)
class Allocation:
    """Resources that a job requests from Slurm. None leaves the choice to Slurm."""

    partition: str | None = None
    nodes: int = 1
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    """CPUs on each node; by default as many as the ranks need."""
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    sbatch: Sequence[str] = ()
    """Any other options of `sbatch`, such as `--mem=64G`; they override the ones before."""

    def list_options(self, experiment: Experiment) -> list[str]:
        """Return the options of `sbatch`; raises UsageError if a run needs more than its nodes
        have."""
        needed = Resources.required_by(experiment.workers).amounts
        cpus = self.cpus_per_task or math.ceil(needed["CPU"] / self.nodes)
        requested = {"CPU": cpus, "GPU": self.gpus_per_node}
        flags = {"CPU": "--cpus-per-task", "GPU": "--gpus-per-node"}
        for resource, per_node in requested.items():
            amount = needed.get(resource, 0)
            if per_node is not None and self.nodes * per_node < amount:
                raise UsageError(
                    f"the ranks need {format_count(amount, resource)}, but {flags[resource]} "
                    f"{per_node} on {format_count(self.nodes, 'node')} gives "
                    f"{self.nodes * per_node}; raise {flags[resource]} or --nodes"
                )
        values = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "time": self.time,
            "nodes": self.nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": cpus,
            "gpus-per-node": self.gpus_per_node,
        }
        options = [f"--{name}={value}" for name, value in values.items() if value is not None]
        return [*options, *self.sbatch]


def make_script(submission: Submission, allocation: Allocation) -> str:
    """Return the script of a job that runs an experiment in the current folder.

    Raises UsageError for a storage with keys, a name that is taken, an allocation that is too
    small, and ConfigError for a missing environment variable.
    """
    storage = submission.storage
    if "://" not in storage:
        storage = str(Path(storage).absolute())
    check_storage(storage)
    # Slurm passes the variables of `sbatch` on to the job.
    read_environment(submission.experiment.environment)
    folder = RunFolder(storage, submission.name)
    check_name_is_free(folder)

    arguments = submission.list_arguments(str(submission.config), storage)
    options = allocation.list_options(submission.experiment)
    lines = [
        "#!/bin/bash",
        *_list_directives(submission.name, arguments, options),
        "",
        *_list_variables(folder, arguments),
        "",
    ]
    return "\n".join([*lines, _SCRIPT.read_text()])


def _list_directives(name: str, arguments: Sequence[str], allocation: Sequence[str]) -> list[str]:
    """Return the lines that sbatch reads; raises UsageError for a control character."""
    options = [
        f"--job-name={name}",
        f"--comment=hookyard {shlex.join(arguments)}",
        f"--chdir={Path.cwd()}",
        "--export=ALL",
        "--requeue",
        "--open-mode=append",
        f"--signal=B:USR1@{LEAD_S}",
        *allocation,
    ]
    for option in options:
        if not option.isprintable():
            raise UsageError(f"{option!r} contains a control character, which sbatch cannot read")
    return [f"#SBATCH {shlex.quote(option)}" for option in options]


def _list_variables(folder: RunFolder, arguments: Sequence[str]) -> list[str]:
    """Return the lines that set the variables of the script."""
    hookyard = [sys.executable, "-m", "orchestrator"]
    variables = {
        "python": shlex.quote(sys.executable),
        "run": shlex.quote(str(folder)),
        "start": f"({shlex.join([*hookyard, *arguments])})",
        # Slurm has ended the driver before it starts the job again.
        "resume": f"({shlex.join([*hookyard, 'resume', str(folder), '--force-lease'])})",
        "address_file": ADDRESS_FILE,
    }
    return [f"{variable}={value}" for variable, value in variables.items()]
