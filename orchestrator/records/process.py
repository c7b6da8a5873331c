"""Which process drives a run, and whether it still lives. Imports neither ray nor torch."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Process:
    """One process, told from every other that has or had its number."""

    pid: int
    host: str
    boot: str | None = None
    """Which start of its machine it was, and in which namespace the number counts; None where the system does not
    say."""
    process_started: str | None = None
    """When it began, in units of its system."""

    @classmethod
    def this(cls) -> Self:
        """The process that asks."""
        return cls(os.getpid(), socket.gethostname(), _boot(), _started(os.getpid()))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_visible(self) -> bool:
        """Whether it can be seen from here whether it lives."""
        return (self.host, self.boot) == (socket.gethostname(), _boot())

    def is_this(self) -> bool:
        """Whether it is the process that asks."""
        return self == Process.this()

    def is_alive(self) -> bool:
        """Whether it is still there, and no other by its number; ask it of a visible one."""
        started = _started(self.pid)
        return started is not None and self.process_started in (None, started)


def is_pid_alive(pid: int) -> bool:
    """Whether a process of this machine has the number."""
    return _started(pid) is not None


def _boot() -> str | None:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process began; None where there is none, or a zombie alone."""
    if sys.platform != "linux":
        return _started_by_psutil(pid)
    try:
        # What stands in brackets is the program's name, with whatever it likes in it.
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else fields[18]


def _started_by_psutil(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return "unknown"
