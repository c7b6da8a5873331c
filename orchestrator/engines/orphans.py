"""What a Ray that died has left on this machine: its agents outlive it. Imports no Ray."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Orphan:
    """A process of a Ray whose raylet is gone."""

    pid: int
    name: str
    rss_bytes: int


def orphans() -> list[Orphan]:
    """This user's processes of Ray that no raylet stands above any more: nothing uses them."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            name = (process.cmdline() or [""])[0]
            if (
                not name.startswith("ray::")
                or process.status() == psutil.STATUS_ZOMBIE
                or process.uids().real != os.getuid()
            ):
                continue
            if all(parent.name() != "raylet" for parent in process.parents()):
                found.append(Orphan(process.pid, name, process.memory_info().rss))
        except psutil.Error:
            continue  # it ended meanwhile
    return found


def in_words(left: list[Orphan]) -> str:
    """What is left, in a line: which processes, and what they hold."""
    named = ", ".join(f"{one.name} ({one.pid})" for one in left)
    return (
        f"{len(left)} processes of a Ray that died hold {sum(one.rss_bytes for one in left) / 2**20:.0f} MiB: {named}"
    )
