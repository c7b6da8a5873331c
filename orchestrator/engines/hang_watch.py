"""The hang watch: a thread that compares the loop's counters, so the loop itself does nothing. Runs
in workers."""

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Self

from hooks.state import State
from orchestrator.disk.hang import RankStack, tick_s
from orchestrator.disk.hang_reports import HangReports
from orchestrator.engines.rank_progress import SLOW_FACTOR, describe_progress
from orchestrator.engines.stack_dump import StackDump
from orchestrator.experiment.sections.training import Hang
from orchestrator.loop.world import World

REQUESTED_LIMIT_S = 2.0
"""Seconds without progress after which a rank reports its stack if the driver has requested
stacks."""
_MAX_FRAMES = 12

_log = logging.getLogger("hookyard")


@dataclass(frozen=True)
class RankTermination:
    """How the watch ends a rank that hangs."""

    terminate: Callable[[str], None]
    """Function that ends the rank, for a reason."""
    can_end_process: bool = False
    """True if the process is the rank's own, so that faulthandler may end it while its interpreter
    lock is held."""


def _end_process(reason: str) -> None:
    """End this process at once. Its driver finds the reason in the run's folder."""
    os._exit(1)


END_PROCESS = RankTermination(_end_process, can_end_process=True)
"""Termination of a rank that has a process of its own."""


class HangWatch:
    """Watchdog thread of one rank. It reports the rank's stack while any rank has made no progress
    within the limit.

    Progress is a new iteration, epoch or phase. `limits` holds the seconds without progress, and
    the action. With the action `fail`, `termination` ends the hung rank; if that is impossible, it
    ends the first rank that waits for it. Time while this process is stopped (SIGSTOP) does not count.
    """

    def __init__(
        self,
        reports: HangReports,
        world: World,
        limits: Hang,
        termination: RankTermination | None = None,
    ) -> None:
        self._reports = reports
        self._world = world
        self._limits = limits
        self._termination = termination
        self._tick_s = tick_s(limits.after)
        self._state: State | None = None
        self._start_iteration = 0
        self._progress: tuple[Any, ...] = ()
        self._idle_s = 0.0
        self._has_reported = False
        self._thread_id = threading.get_ident()
        self._paused = threading.Event()
        self._stop = threading.Event()
        self._dump: StackDump | None = None
        self._thread = threading.Thread(target=self._watch, name="hang-watch", daemon=True)

    def __enter__(self) -> Self:
        self._dump = self._open_dump()
        self._arm(SLOW_FACTOR * self._limits.after)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * self._tick_s)
        if self._dump:
            self._dump.close()

    def _open_dump(self) -> StackDump | None:
        """Return the file for the stack of a held interpreter lock; None in the driver's process,
        and for a run on an object store."""
        if self._termination is None or not self._termination.can_end_process:
            return None
        path = self._reports.stack_file(self._world.rank)
        if path is None:
            return None
        return StackDump(path, ends_process=self._limits.action == "fail")

    def follow(self, state: State) -> None:
        """Read progress from `state` from now on."""
        self._state = state
        self._start_iteration = state.iteration

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count time within the block, in which the rank waits for its driver."""
        self._paused.set()
        try:
            yield
        finally:
            self._paused.clear()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(min(1.0, self._tick_s)):
            now = time.monotonic()
            if now - before < self._tick_s and not self._reports.has_request():
                continue
            try:
                self._check(min(now - before, 2 * self._tick_s))
            # If this thread ended, faulthandler would take that for a held lock, and end the rank.
            except Exception as error:
                _log.warning("rank %d cannot report its stack: %s", self._world.rank, error)
                self._arm(SLOW_FACTOR * self._limits.after)
            before = now
        self._withdraw()

    def _check(self, passed_s: float) -> None:
        state = self._state
        progress: tuple[Any, ...] = ()
        if state:
            progress = (state.phase, state.epoch, state.iteration, state.phase_iteration)
        has_progress = progress != self._progress or self._paused.is_set()
        self._progress = progress
        self._idle_s = 0.0 if has_progress else self._idle_s + passed_s
        report = self._make_report()
        self._arm(max(report.limit_s, self._limits.after))
        if not report.is_over_limit and not self._has_hung_peer():
            self._withdraw()
            return

        self._has_reported = True
        self._reports.write(replace(report, stack=self._format_stack()))
        self._act(report)

    def _has_hung_peer(self) -> bool:
        """Return whether another rank is over its limit."""
        return any(rank != self._world.rank for rank in self._reports.ranks_over_limit())

    def _withdraw(self) -> None:
        if self._has_reported:
            self._reports.withdraw(self._world.rank)
        self._has_reported = False

    def _arm(self, limit_s: float) -> None:
        """Write the stack if this thread cannot get the interpreter lock within the limit."""
        if self._dump:
            self._dump.arm(limit_s)

    def _make_report(self) -> RankStack:
        world = self._world
        progress = describe_progress(
            self._state,
            self._read_frames(),
            after_s=self._limits.after,
            start_iteration=self._start_iteration,
            world_size=world.world_size,
        )
        limit_s = progress.limit_s
        if self._reports.has_request():
            limit_s = REQUESTED_LIMIT_S
        return RankStack(
            rank=world.rank,
            node=world.node,
            at=time.time(),
            idle_s=self._idle_s,
            limit_s=limit_s,
            waits=progress.is_waiting,
            place=progress.place,
        )

    def _format_stack(self) -> str:
        """Return the stack of the watched thread; empty if the thread has ended."""
        frame = sys._current_frames().get(self._thread_id)
        if frame is None:  # with None, traceback would format the stack of this thread
            return ""
        return "".join(traceback.format_stack(frame, limit=_MAX_FRAMES))

    def _read_frames(self) -> list[FrameType]:
        """Return the stack of the watched thread, innermost frame first."""
        innermost_frame = sys._current_frames().get(self._thread_id)
        if innermost_frame is None:
            return []
        return [frame for frame, _ in traceback.walk_stack(innermost_frame)]

    def _act(self, report: RankStack) -> None:
        """End this rank if the action is `fail` and it hangs, or is the first to wait for one that
        cannot be ended."""
        if not self._termination or self._limits.action != "fail":
            return
        if not report.is_over_limit or self._reports.has_request():
            return
        if report.waits and self._reports.ranks_over_limit()[:1] != [report.rank]:
            return
        ranks = self._reports.find_hung_ranks()
        if ranks and (not report.waits or not ranks.hung):
            self._termination.terminate(str(ranks))
