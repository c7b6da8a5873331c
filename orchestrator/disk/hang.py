"""Reports of ranks while one makes no progress, and the rule to find the hung rank. Imports neither
ray nor torch."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import DamagedFile, HookyardError
from orchestrator.storage.json_files import read_json
from orchestrator.storage.strict_json import format_json
from orchestrator.storage.validation import validate

FOLDER = ".hang"
"""Folder in which the ranks of a run report while one of them hangs; empty otherwise."""
STACKS = f"{FOLDER}/stacks"
"""Folder of the stacks that faulthandler writes if a rank's interpreter lock is held."""
REQUEST = f"{FOLDER}/asked"
"""File with which the driver requests every rank's stack, after Ctrl-C."""
_SILENT_TICKS = 5
"""Ticks without a report after which a rank counts as silent; a live rank reports at each tick."""
_HOLDS_INTERPRETER = "in a call that does not release Python's interpreter lock"


def tick_s(after_s: float) -> float:
    """Return the seconds between two checks of a rank that may go without progress for
    `after_s`."""
    return min(10.0, max(0.1, after_s / 10))


@dataclass(frozen=True)
class RankStack:
    """Report of a rank: its location in the program, and since when."""

    rank: int
    node: str
    at: float
    """Unix time of the report, by the rank's own clock."""
    idle_s: float
    """Seconds since the last progress."""
    limit_s: float
    """Maximum seconds without progress at this location."""
    waits: bool
    """True if the rank waits for other ranks."""
    place: str
    """Phase, epoch, iteration and line, as text."""
    stack: str = ""

    @property
    def is_over_limit(self) -> bool:
        return self.idle_s >= self.limit_s

    @property
    def silent_s(self) -> float:
        """Seconds without a report after which the rank counts as silent."""
        return _SILENT_TICKS * tick_s(self.limit_s)

    def describe(self, world_size: int) -> str:
        """Say where the rank is and since when; training on a single rank is not called rank 0."""
        subject = f"rank {self.rank}" if world_size > 1 else "training"
        since = time.strftime("%H:%M:%S", time.localtime(self.at - self.idle_s))
        node = f" on {self.node}" if self.node else ""
        duration = f" ({self.idle_s:.0f} s)" if self.idle_s else ""
        return f"{subject}{node} has made no progress since {since}{duration}: {self.place}"


@dataclass(frozen=True)
class HungRanks:
    """Ranks that hang, and ranks that wait for them. If all are waiting, they wait for each
    other."""

    hung: Sequence[RankStack]
    silent: Sequence[int]
    """Ranks without a recent report."""
    waiting: Sequence[RankStack]
    world_size: int

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that caused the hang; all waiting ranks if the cause is unknown."""
        causes = (*(stack.rank for stack in self.hung), *self.silent)
        return causes or tuple(stack.rank for stack in self.waiting)

    def __str__(self) -> str:
        if not self.hung and not self.silent:
            waiting = "; ".join(stack.describe(self.world_size) for stack in self.waiting)
            return f"all ranks wait for each other, in calls that do not match: {waiting}"

        parts = [stack.describe(self.world_size) for stack in self.hung]
        if self.silent:
            why = "the process is stopped, the machine is gone, or a C call holds Python's interpreter lock"
            parts.append(f"no sign of {_join_ranks(self.silent)}: {why}")
        if self.waiting:
            longest = max(self.waiting, key=lambda stack: stack.idle_s)
            ranks = _join_ranks([stack.rank for stack in self.waiting])
            verb = "wait" if len(self.waiting) > 1 else "waits"
            parts.append(f"{ranks} {verb} for that ({longest.idle_s:.0f} s): {longest.place}")
        return "; ".join(parts)

    @property
    def stacks(self) -> str:
        """Stacks of the hung ranks, for the log."""
        return "\n".join(
            f"stack{f' of rank {stack.rank}' if self.world_size > 1 else ''}:\n{stack.stack}"
            for stack in self.hung or self.waiting
            if stack.stack
        )


def find_hung_ranks(stacks: Sequence[RankStack], world_size: int) -> HungRanks | None:
    """Return the ranks that hang; None if no rank is over its limit, or another rank may still make
    progress."""
    if not any(stack.is_over_limit for stack in stacks):
        return None
    hung = [stack for stack in stacks if stack.is_over_limit and not stack.waits]
    waiting = [stack for stack in stacks if stack.is_over_limit and stack.waits]

    silent = []
    is_overdue = all(stack.idle_s >= stack.limit_s + stack.silent_s for stack in waiting)
    if waiting and is_overdue:
        newest = max(stack.at for stack in stacks)
        reporting = {stack.rank for stack in stacks if newest - stack.at < stack.silent_s}
        silent = [rank for rank in range(world_size) if rank not in reporting]

    if not hung and not silent and len(waiting) < world_size:
        return None
    return HungRanks(hung, silent, waiting, world_size)


class HangReports:
    """Reports of the ranks of one attempt, in the run's folder."""

    def __init__(self, folder: RunFolder, attempt: int, world_size: int) -> None:
        self._storage = folder.storage
        self._attempt = attempt
        self._world_size = world_size

    def _name(self, rank: int, over_limit: bool) -> str:
        return f"{FOLDER}/{self._attempt}-{rank}.{'hangs' if over_limit else 'moves'}"

    def write(self, stack: RankStack) -> None:
        """Write a rank's report. Called on that rank."""
        self._storage.write(self._name(stack.rank, stack.is_over_limit), format_json(asdict(stack)))
        self._storage.delete(self._name(stack.rank, not stack.is_over_limit))

    def withdraw(self, rank: int) -> None:
        """Delete a rank's report. Called on that rank."""
        for over_limit in (True, False):
            self._storage.delete(self._name(rank, over_limit))

    def ranks_over_limit(self) -> list[int]:
        """Return the ranks over their limit. Takes one listing, because thousands of ranks call
        this."""
        names = [name for name in self._list_names() if name.endswith(".hangs")]
        return sorted(int(name.split("-")[1].removesuffix(".hangs")) for name in names)

    def _list_names(self) -> list[str]:
        prefix = f"{self._attempt}-"
        return [name for name in self._storage.names(FOLDER) if name.startswith(prefix)]

    def stack_file(self, rank: int) -> Path | None:
        """Return faulthandler's file for a rank's stack; None if the run is on an object store."""
        return self._storage.local and self._storage.local / STACKS / f"{self._attempt}-{rank}"

    def has_request(self) -> bool:
        """Return whether the driver has requested stacks; only on a disk that can be read, where it
        costs nothing."""
        with suppress(HookyardError, OSError):
            return self._storage.local is not None and self._storage.exists(REQUEST)
        return False

    def read(self) -> list[RankStack]:
        """Return the ranks' reports, ordered by rank; skips reports that are being withdrawn."""
        reports = self._storage.map(self._read, self._list_names())
        stacks = {stack.rank: stack for stack in reports if stack}
        if stacks or self._world_size == 1:
            stacks.update(self._read_faulthandler_stacks())
        return [stacks[rank] for rank in sorted(stacks)]

    def _read(self, name: str) -> RankStack | None:
        def read_stack(data: Any) -> RankStack:
            return validate(data, RankStack)

        with suppress(FileNotFoundError, DamagedFile):
            return read_json(self._storage, f"{FOLDER}/{name}", read_stack, "It is left out.")
        return None

    def _read_faulthandler_stacks(self) -> dict[int, RankStack]:
        """Return the stacks that faulthandler wrote, by rank."""
        stacks = {}
        for name, state in self._storage.tree(STACKS).items():
            attempt, rank = map(int, name.split("-"))
            if not state.size_bytes or attempt != self._attempt:
                continue
            stacks[rank] = RankStack(
                rank,
                node="",
                at=state.modified or 0,
                idle_s=0,
                limit_s=0,
                waits=False,
                place=_HOLDS_INTERPRETER,
                stack=self._storage.read(f"{STACKS}/{name}").decode(errors="replace"),
            )
        return stacks

    def find_hung_ranks(self) -> HungRanks | None:
        return find_hung_ranks(self.read(), self._world_size)


def find_hang(folder: RunFolder) -> HungRanks | None:
    """Return the hung ranks of a run's newest attempt; takes one listing if none hangs."""
    names = folder.storage.names(FOLDER)
    if not any("-" in name for name in names) and len(folder.storage.names(STACKS)) != 1:
        return None
    attempts = folder.read_attempts()
    if not attempts:
        return None
    return HangReports(folder, attempts[-1].number, attempts[-1].world_size).find_hung_ranks()


def _join_ranks(ranks: Sequence[int]) -> str:
    rest = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{rest}"
