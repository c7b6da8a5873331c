"""Jobs of Slurm: submit, follow and stop them through Slurm's commands."""

import io
import re
import shlex
import subprocess
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.cluster.job_status import ENDED, JobStatus
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

    def status(self, job: str) -> JobStatus:
        """Return the status of a job; raises UsageError for an unknown one."""
        return _make_status(job, _read_fields(job))

    def log(self, job: str) -> str:
        """Return the log of a job so far; empty before it starts. Raises UsageError for a job
        without a log."""
        file = _get_log_file(job, _read_fields(job))
        return _Log().read_new(file, is_complete=True)

    def stop(self, job: str) -> None:
        """Ask a job to save a checkpoint and end, or remove it from the queue."""
        _call("scancel", "--state=PENDING", job)
        if self.status(job).status == "RUNNING":
            # Without --batch, Slurm would end Ray too, and the run could not save.
            _call("scancel", "--batch", "--signal=TERM", job)

    def follow(self, job: str, show: Callable[[str], None]) -> JobStatus:
        """Show the log of a job, also while it is requeued, until it has ended."""
        log = _Log()
        message = ""
        while True:
            # Slurm's controller may be away for a while, and its jobs continue.
            with suppress(RunError):
                fields = _read_fields(job)
                status = _make_status(job, fields)
                if status.status == "PENDING" and status.message != message:
                    message = status.message
                    print_line(f"{job}: {message}")
                has_ended = status.status in ENDED
                show(log.read_new(_get_log_file(job, fields), is_complete=has_ended))
                if has_ended:
                    return status
            time.sleep(_POLL_S)


class _Log:
    """The log of a job, a file that grows."""

    def __init__(self) -> None:
        self._position = 0
        """Number of bytes that were read."""
        self._decoder = _make_decoder()

    def read_new(self, file: str, *, is_complete: bool) -> str:
        """Return the text since the last call; empty before the file exists.

        Unless the log `is_complete`, the next call returns a character that is not yet whole.
        """
        try:
            content = self._read_bytes(file)
        except FileNotFoundError:
            content = b""
        text: str = self._decoder.decode(content, final=is_complete)
        return text

    def _read_bytes(self, file: str) -> bytes:
        with Path(file).open("rb") as log:
            size = log.seek(0, io.SEEK_END)
            if size < self._position:  # a requeued job may begin its log anew
                self._position = 0
                self._decoder = _make_decoder()
            log.seek(self._position)
            content = log.read()
            self._position = log.tell()
            return content


def _make_decoder() -> io.IncrementalNewlineDecoder:
    """Return a decoder of text that comes in pieces."""
    characters = getincrementaldecoder("utf-8")(errors="replace")
    return io.IncrementalNewlineDecoder(characters, translate=True)


def _read_fields(job: str) -> dict[str, str]:
    """Return what Slurm says about a job; raises UsageError if it knows no such job."""
    text = _call("scontrol", "show", "job", job)
    # A value that may contain anything has a line of its own.
    free = re.compile(r"^ +(Comment|Command|WorkDir|StdErr|StdIn|StdOut)=(.*)$", re.MULTILINE)
    fields = dict(re.findall(r"(\w+)=(\S*)", free.sub("", text)))
    return {"Comment": "", **fields, **dict(free.findall(text))}


def _get_log_file(job: str, fields: Mapping[str, str]) -> str:
    """Return the file of a job's log; raises UsageError for an interactive job, which has none."""
    file = fields.get("StdOut")
    if file is None:
        raise UsageError(f"job {job} has no log, because it was not submitted with sbatch")
    return file


def _make_status(job: str, fields: Mapping[str, str]) -> JobStatus:
    state = fields["JobState"]
    code, signal = (int(number) for number in fields["ExitCode"].split(":"))
    status = _find_status(state, code)
    details = [state]
    if fields["Reason"] not in ("None", "NonZeroExitCode"):
        details.append(fields["Reason"])
    if signal:
        details.append(f"signal {signal}")
    restarts = int(fields["Restarts"])
    if restarts:
        details.append(format_count(restarts, "restart"))
    exit_code = code if status in ENDED else None
    return JobStatus(job, status, ", ".join(details), exit_code, fields["Comment"].strip())


def _find_status(state: str, exit_code: int) -> str:
    """Return the status, as Ray names it, of a job in one of Slurm's states."""
    if state in _PENDING:
        return "PENDING"
    if state in _RUNNING:
        return "RUNNING"
    if state == "COMPLETED":
        return "SUCCEEDED"
    if state == "CANCELLED" or exit_code == _INTERRUPTED:
        return "STOPPED"
    return "FAILED"


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
