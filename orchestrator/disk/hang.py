"""The rule that finds the hung rank of a run. Imports neither ray nor torch."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

_SILENT_TICKS = 5
"""Ticks without a report after which a rank counts as silent; a live rank reports at each tick."""


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
        texts = []
        for stack in self.hung or self.waiting:
            owner = f" of rank {stack.rank}" if self.world_size > 1 else ""
            if stack.stack:
                texts.append(f"stack{owner}:\n{stack.stack}")
        return "\n".join(texts)


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
        known = reporting.union(stack.rank for stack in hung)
        silent = [rank for rank in range(world_size) if rank not in known]

    if not hung and not silent and len(waiting) < world_size:
        return None
    return HungRanks(hung, silent, waiting, world_size)


def _join_ranks(ranks: Sequence[int]) -> str:
    noun = "ranks" if len(ranks) > 1 else "rank"
    rest = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"{noun} {', '.join(map(str, ranks[:8]))}{rest}"
