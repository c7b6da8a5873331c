"""Standstill: what ranks say of themselves while one of them makes no progress, and what that comes to: one judgement,
for the driver, `watch` and the ranks alike. Imports neither ray nor torch."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.errors import DamagedFile
from orchestrator.records.run_folder import RunFolder
from orchestrator.storage.stored_data import checked, read_json

FOLDER = ".standstill"
"""Where the ranks of a run leave word while one of them stands; empty otherwise."""
STACKS = f"{FOLDER}/stacks"
"""Of each rank of this machine, what a thread that needs no interpreter writes where the interpreter is not had."""
ASKED = f"{FOLDER}/asked"
"""By this file the driver asks where everybody stands, after Ctrl-C."""
_SILENT_TICKS = 5
"""A rank that lives leaves word at each tick of its watch."""


_HOLDS_INTERPRETER = "in a call that does not let go of Python's interpreter"


def tick_s(after_s: float) -> float:
    """How often a rank is looked at that may stand for so many seconds."""
    return min(10.0, max(0.1, after_s / 10))


@dataclass(frozen=True)
class Whereabouts:
    """What one rank says of itself at one moment."""

    rank: int
    node: str
    at: float
    """When it said so, in seconds since 1970, by its own clock."""
    stood_s: float
    """Since it made progress."""
    limit_s: float
    """For how long it may make none, where it is."""
    waits: bool
    """Whether it waits for other ranks."""
    place: str
    """Phase, epoch, iteration, span and line, in words."""
    stack: str = ""

    @property
    def is_over_limit(self) -> bool:
        """Whether it made no progress for longer than it may."""
        return self.stood_s >= self.limit_s

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.at - self.stood_s))
        node, how_long = f" on {self.node}" if self.node else "", f" ({self.stood_s:.0f} s)" if self.stood_s else ""
        return f"rank {self.rank}{node} stands still since {since}{how_long}: {self.place}"


@dataclass(frozen=True)
class Standstill:
    """Ranks that stand still, and those that wait for them; where none does so by itself, all wait for each other."""

    standing: Sequence[Whereabouts]
    silent: Sequence[int]
    """Ranks that do not even leave word."""
    waiting: Sequence[Whereabouts]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that it began with, as far as can be told; never empty."""
        return (*(one.rank for one in self.standing), *self.silent) or tuple(one.rank for one in self.waiting)

    def __str__(self) -> str:
        if not self.standing and not self.silent:
            return f"all ranks wait for each other, in calls that do not match: {'; '.join(map(str, self.waiting))}"
        told = [*map(str, self.standing)]
        if self.silent:
            why = (
                "its process is stopped, its machine is gone, or a call into C does not let go of Python's interpreter"
            )
            told.append(f"no sign of {_named(self.silent)}: {why}")
        if self.waiting:
            longest = max(self.waiting, key=lambda one: one.stood_s)
            verb = "wait" if len(self.waiting) > 1 else "waits"
            told.append(
                f"{_named([one.rank for one in self.waiting])} {verb} for that ({longest.stood_s:.0f} s):"
                f" {longest.place}"
            )
        return "; ".join(told)

    @property
    def stacks(self) -> str:
        """The stacks of the ranks that stand, for the log."""
        return "\n".join(
            f"rank {one.rank} stands here:\n{one.stack}" for one in self.standing or self.waiting if one.stack
        )


def standstill(words: Sequence[Whereabouts], world_size: int) -> Standstill | None:
    """What the ranks' words come to; None where nobody has stood for too long, or somebody still moves or may take his
    time."""
    if not any(one.is_over_limit for one in words):
        return None
    newest = max(one.at for one in words)
    standing = [one for one in words if one.is_over_limit and not one.waits]
    waiting = [one for one in words if one.is_over_limit and one.waits]
    heard = {one.rank for one in words if newest - one.at < _SILENT_TICKS * tick_s(one.limit_s)}
    patient = all(one.stood_s >= one.limit_s + _SILENT_TICKS * tick_s(one.limit_s) for one in waiting)
    silent = [rank for rank in range(world_size) if rank not in heard] if waiting and patient else []
    if not standing and not silent and len(waiting) < world_size:
        return None
    return Standstill(standing, silent, waiting)


class StandstillNotes:
    """The words that the ranks of one attempt leave in its run's folder. Any process."""

    def __init__(self, folder: RunFolder, attempt: int, world_size: int) -> None:
        self._storage, self._attempt, self._world_size = folder.storage, attempt, world_size

    def _name(self, rank: int, stands: bool) -> str:
        return f"{FOLDER}/{self._attempt}-{rank}.{'stands' if stands else 'moves'}"

    def leave(self, words: Whereabouts) -> None:
        """Writes down where a rank is. That rank."""
        self._storage.write(self._name(words.rank, words.is_over_limit), json.dumps(asdict(words)))
        self._storage.delete(self._name(words.rank, not words.is_over_limit))

    def withdraw(self, rank: int) -> None:
        """Takes back what a rank has left. That rank."""
        for stands in (True, False):
            self._storage.delete(self._name(rank, stands))

    def over_limit(self) -> list[int]:
        """The ranks that say they made no progress for too long: one listing, as each of thousands asks for it."""
        ends = [
            name.split("-")
            for name in self._storage.names(FOLDER)
            if name.startswith(f"{self._attempt}-") and name.endswith(".stands")
        ]
        return sorted(int(end.removesuffix(".stands")) for _, end in ends)

    def stack_file(self, rank: int) -> Path | None:
        """Where a rank's stack is put by a thread that needs no interpreter; None where that is no folder of this
        machine."""
        return self._storage.local and self._storage.local / STACKS / f"{self._attempt}-{rank}"

    def asked(self) -> bool:
        """Whether the driver asks where everybody stands; costs nothing to ask on a disk, and is not asked
        elsewhere."""
        return self._storage.local is not None and self._storage.exists(ASKED)

    def read(self) -> list[Whereabouts]:
        """What the ranks say, in their order; what is being taken back is left out."""
        names = [name for name in self._storage.names(FOLDER) if name.startswith(f"{self._attempt}-")]
        found = {words.rank: words for words in self._storage.each(self._words, names) if words}
        written = self._storage.files(STACKS) if found or self._world_size == 1 else {}
        for name, state in written.items():
            attempt, rank = map(int, name.split("-"))
            if state.size_bytes and attempt == self._attempt:
                stack = self._storage.read(f"{STACKS}/{name}").decode(errors="replace")
                found[rank] = Whereabouts(rank, "", state.modified or 0, 0, 0, False, _HOLDS_INTERPRETER, stack)
        return [found[rank] for rank in sorted(found)]

    def _words(self, name: str) -> Whereabouts | None:
        with suppress(FileNotFoundError, DamagedFile):
            words: Whereabouts = read_json(
                self._storage, f"{FOLDER}/{name}", lambda entries: checked(entries, Whereabouts), "It is left out."
            )
            return words
        return None

    def judged(self) -> Standstill | None:
        """What that comes to."""
        return standstill(self.read(), self._world_size)


def present_standstill(folder: RunFolder) -> Standstill | None:
    """What stands still in the newest attempt of a run; asks for one listing where nothing does."""
    names = folder.storage.names(FOLDER)
    if not any("-" in name for name in names) and len(folder.storage.names(STACKS)) != 1:
        return None
    attempts = folder.attempts()
    return StandstillNotes(folder, attempts[-1].number, attempts[-1].world_size).judged() if attempts else None


def _named(ranks: Sequence[int]) -> str:
    rest = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{rest}"
