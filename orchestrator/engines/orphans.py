"""Processes that a Ray instance left on this machine when it died. Imports no ray."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Orphan:
    """A Ray process without its raylet."""

    pid: int
    name: str
    rss_bytes: int


def find_orphans() -> list[Orphan]:
    """Return this user's Ray processes that no longer descend from a raylet; nothing uses them."""
    import psutil

    unused = []
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
                unused.append(Orphan(process.pid, name, process.memory_info().rss))
        except psutil.Error:
            continue  # it ended meanwhile
    return unused


def describe_orphans(orphans: list[Orphan]) -> str:
    """Describe orphans in a line."""
    names = ", ".join(f"{orphan.name} ({orphan.pid})" for orphan in orphans)
    mib = sum(orphan.rss_bytes for orphan in orphans) / 2**20
    return f"{len(orphans)} unused processes of a Ray instance that died hold {mib:.0f} MiB: {names}"
