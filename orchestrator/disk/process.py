"""The identity of a driver's process. Imports neither ray nor torch."""

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from annotated_types import Gt, Lt


@dataclass(frozen=True)
class Process:
    """Identity of a process, which differs from that of later processes with the same pid."""

    pid: Annotated[int, Gt(0), Lt(2**31)]
    host: str
    boot: str | None = None
    """Boot id of its machine, and its pid namespace; None if unknown."""
    process_started: str | None = None
    """Start time in the system's units."""

    @classmethod
    def current(cls) -> Self:
        return cls(
            os.getpid(), socket.gethostname(), _read_boot_id(), _read_start_time(os.getpid())
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_visible(self) -> bool:
        """Return whether this machine can check that the process is alive."""
        return (self.host, self.boot) == (socket.gethostname(), _read_boot_id())

    def is_current(self) -> bool:
        return self == Process.current()

    def is_alive(self) -> bool:
        """Return whether a visible process is alive, and its pid was not reused."""
        started = _read_start_time(self.pid)
        return started is not None and self.process_started in (None, started)


def is_pid_alive(pid: int) -> bool:
    """Return whether a process on this machine has this pid."""
    return _read_start_time(pid) is not None


def _read_boot_id() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _read_start_time(pid: int) -> str | None:
    """Return the start time of a process; None if there is none, or only a zombie."""
    if sys.platform != "linux":
        return _read_start_time_by_psutil(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # The program's name stands in brackets, and may contain anything.
        state, *fields = text.rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else fields[18]


def _read_start_time_by_psutil(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return "unknown"
