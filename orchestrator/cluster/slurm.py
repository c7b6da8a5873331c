"""Jobs of Slurm: submit, follow and stop them through Slurm's commands."""

import re
import shlex
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator.cluster.jobs import ENDED, Status
from orchestrator.errors import RunError, UsageError
from orchestrator.process.streams import print_line
from orchestrator.units import format_count

_POLL_S = 3.0
_PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT")
_BUSY = (
    "contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Communication connection failure",
    "Protocol authentication error",
)
"""Parts of the messages of Slurm's commands if its controller is away, or too busy to answer."""
_INTERRUPTED = 130
"""Exit code of a driver that has saved and ended because it was told to."""


class SlurmJobs:
    """The jobs of the Slurm whose commands are on the PATH."""

    flags = ""
    """What commands about a job need besides its number."""

    def submit(self, script: str) -> str:
        """Submit a script, and return the job's number; raises UsageError if Slurm rejects it."""
        output = _call("sbatch", "--parsable", text=script)
        return output.strip().split(";")[0]

    def status(self, job: str) -> Status:
        """Return the status of a job; raises UsageError for an unknown one."""
        fields = self._read_fields(job)
        state = fields["JobState"]
        code, signal = (int(number) for number in fields["ExitCode"].split(":"))
        if state in _PENDING:
            status = "PENDING"
        elif state in _RUNNING:
            status = "RUNNING"
        elif state == "COMPLETED":
            status = "SUCCEEDED"
        else:
            status = "STOPPED" if state == "CANCELLED" or code == _INTERRUPTED else "FAILED"
        details = [state]
        if fields["Reason"] not in ("None", "NonZeroExitCode"):
            details.append(fields["Reason"])
        if signal:
            details.append(f"signal {signal}")
        if restarts := int(fields["Restarts"]):
            details.append(format_count(restarts, "restart"))
        exit_code = code if status in ENDED else None
        return Status(job, status, ", ".join(details), exit_code, fields["Comment"].strip())

    def log(self, job: str) -> str:
        """Return the log of a job so far; empty before it starts."""
        file = Path(self._read_fields(job)["StdOut"])
        return file.read_text(errors="replace") if file.exists() else ""

    def stop(self, job: str) -> None:
        """Ask a job to save a checkpoint and end, or remove it from the queue."""
        _call("scancel", "--state=PENDING", job)
        if self.status(job).status == "RUNNING":
            # Without --batch, Slurm would end Ray too, and the run could not save.
            _call("scancel", "--batch", "--signal=TERM", job)

    def follow(self, job: str, show: Callable[[str], None]) -> Status:
        """Show the log of a job, also while it is requeued, until it has ended."""
        shown = 0
        message = ""
        while True:
            # Slurm's controller may be away for a while, and its jobs continue.
            with suppress(RunError):
                status = self.status(job)
                if status.status == "PENDING" and status.message != message:
                    message = status.message
                    print_line(f"{job}: {message}")
                log = self.log(job)
                show(log[shown:])
                shown = len(log)
                if status.status in ENDED:
                    return status
            time.sleep(_POLL_S)

    def _read_fields(self, job: str) -> dict[str, str]:
        """Return what Slurm says about a job; raises UsageError if it knows no such job."""
        text = _call("scontrol", "show", "job", job)
        # A value that may contain anything has a line of its own.
        free = re.compile(r"^ +(Comment|Command|WorkDir|StdErr|StdIn|StdOut)=(.*)$", re.MULTILINE)
        fields = dict(re.findall(r"(\w+)=(\S*)", free.sub("", text)))
        return {"Comment": "", **fields, **dict(free.findall(text))}


def _call(*command: str, text: str | None = None) -> str:
    """Return the output of a command of Slurm's; raises UsageError or RunError with its message."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UsageError(
            f"Slurm's command {command[0]} is not on the PATH; use a login node of the cluster"
        ) from error
    if done.returncode == 0:
        return done.stdout
    message = done.stderr.strip()
    is_busy = any(part in message for part in _BUSY)
    kind = RunError if is_busy else UsageError
    raise kind(f"{shlex.join(command)} failed: {message}")
