"""The hook that causes accidents, and the effect of each accident."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil
import torch

from hooks import Hook, State

SIGNALS = {
    "kill": signal.SIGKILL,
    "interrupt": signal.SIGINT,
    "terminate": signal.SIGTERM,
    "stop": signal.SIGSTOP,
}
FILLER = "filler"
"""File that fills the disk."""
CLOCK_ERROR_S = -3 * 3600
"""Seconds by which a clock is set back."""
HIDDEN_S = 0.2
"""Seconds for which a disk is away, if it comes back."""


@dataclass
class RoundAccident(Hook):
    """Causes an accident once at each place, among the events of a custom loop.

    In `kill on_step train 1 2` these are the accident, the event, the phase, its epoch and
    iteration. The name of a trial, or a rank such as `rank1`, may follow. `kill-driver` and the
    like send the signal to the driver, to the `raylet` of the rank's node, or to the cluster's
    `head`.
    """

    places: list[str] = field(default_factory=list)
    marks: str = ""
    """Folder that remembers which accidents have happened."""
    disk: str = ""
    """Mount point of the disk that holds the run."""

    observes: ClassVar[bool] = True

    def meet(self, event: str, state: State) -> None:
        moment = f"{event} {state.phase} {state.epoch} {state.phase_iteration}"
        for place in self.places:
            kind, _, planned = place.partition(" ")
            mark = Path(self.marks, place)
            if (
                planned in (moment, f"{moment} {state.name}", f"{moment} rank{state.rank}")
                and not mark.exists()
            ):
                mark.touch()
                self.cause(kind, state)

    def cause(self, kind: str, state: State) -> None:
        name, _, target = kind.partition("-")
        if name in SIGNALS:
            victims = {
                "": os.getpid,
                "driver": lambda: driver(state),
                "raylet": os.getppid,
                "head": gcs_server,
            }
            os.kill(victims[target](), SIGNALS[name])
        else:
            CAUSES[kind](Path(self.disk))

    def on_phase_start(self, state: State) -> None:
        self.meet("on_phase_start", state)

    def on_step(self, state: State) -> None:
        self.meet("on_step", state)

    def on_phase_end(self, state: State) -> None:
        self.meet("on_phase_end", state)


@dataclass
class Accident(RoundAccident):
    """Causes accidents among the events of a batch too."""

    def on_batch(self, state: State) -> None:
        self.meet("on_batch", state)

    def on_loss(self, state: State) -> None:
        self.meet("on_loss", state)


def driver(state: State) -> int:
    """Return the process of the driver: of the run, or of the trial's sweep."""
    folder = next(
        parent
        for parent in (state.artifacts, *state.artifacts.parents)
        if (parent / "run.json").exists()
    )
    sweep = folder.parent.parent
    folder = sweep if (sweep / "run.json").exists() else folder
    return int(json.loads((folder / "run.json").read_text())["pid"])


def gcs_server() -> int:
    """Return the process of the Ray cluster's control store."""
    import ray

    port = int(ray.get_runtime_context().gcs_address.rpartition(":")[2])
    servers = [
        process for process in psutil.process_iter(["name"]) if process.info["name"] == "gcs_server"
    ]
    return next(
        server.pid
        for server in servers
        if any(
            socket.laddr.port == port
            for socket in server.net_connections("tcp")
            if socket.status == "LISTEN"
        )
    )


def fill(disk: Path) -> None:
    """Write a file until the disk is full."""
    with open(disk / FILLER, "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return


def hide(disk: Path) -> None:
    """Put an empty disk in the place of the disk, as when a share is unmounted."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "hidden", str(disk)], check=True)


def unhide(disk: Path) -> None:
    """Bring the disk back, if it is hidden."""
    while (
        f" {disk} tmpfs" in (mounts := Path("/proc/mounts").read_text())
        and f"hidden {disk} " in mounts
    ):
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def hide_briefly(disk: Path) -> None:
    """Hide the disk, and bring it back while the run continues."""
    hide(disk)
    threading.Timer(HIDDEN_S, unhide, [disk]).start()


def set_clock_back(disk: Path) -> None:
    """Set the clock of this process back, in every module that reads it."""
    right = time.time

    def wrong() -> float:
        return right() + CLOCK_ERROR_S

    for module in [*sys.modules.values()]:
        for name in [name for name, value in vars(module).items() if value is right]:
            setattr(module, name, wrong)


def exhaust_memory(disk: Path) -> None:
    """Allow this process little more memory than it has, and ask for more than that.

    The limit ends with the error: below it, even Python's threads cannot start, and a process may
    wait forever.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        torch.zeros(1 << 28)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


CAUSES: dict[str, Callable[[Path], Any]] = {
    "fill": fill,
    "hide": hide,
    "blink": hide_briefly,
    "clock": set_clock_back,
    "memory": exhaust_memory,
}
