"""The hang watch: a thread that compares the loop's counters, so the loop itself does nothing. Runs
in workers."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from hooks.state import State
from orchestrator.disk.hang import RankStack, tick_s
from orchestrator.disk.hang_reports import HangReports
from orchestrator.engines.idle_time import IdleTime
from orchestrator.engines.rank_progress import SLOW_FACTOR, describe_progress
from orchestrator.engines.rank_termination import RankTermination
from orchestrator.engines.stack_dump import StackDump
from orchestrator.engines.thread_stack import ThreadStack
from orchestrator.experiment.sections.training import Hang
from orchestrator.loop.world import World

REQUESTED_LIMIT_S = 2.0
"""Seconds without progress after which a rank reports its stack if the driver has requested
stacks."""

_log = logging.getLogger("hookyard")


class HangWatch:
    """Watchdog thread of one rank. It reports the rank's stack while any rank has made no progress
    within the limit.

    `limits` holds the seconds without progress, and the action. With the action `fail`,
    `termination` ends the hung rank; if that is impossible, it ends the first rank that waits for
    it. Time while this process is stopped (SIGSTOP) does not count.
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
        self._idle_time = IdleTime()
        self._stack = ThreadStack()
        """The stack of the rank's training thread, which creates the watch."""
        self._has_reported = False
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
        self._idle_time.follow(state)

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
        self._idle_time.add(passed_s, is_paused=self._paused.is_set())
        report = self._make_report()
        self._arm(max(report.limit_s, self._limits.after))
        if not report.is_over_limit and not self._has_hung_peer():
            self._withdraw()
            return

        self._has_reported = True
        self._reports.write(replace(report, stack=self._stack.format()))
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
            self._idle_time.state,
            self._stack.read_frames(),
            after_s=self._limits.after,
            start_iteration=self._idle_time.start_iteration,
            world_size=world.world_size,
        )
        limit_s = progress.limit_s
        if self._reports.has_request():
            limit_s = REQUESTED_LIMIT_S
        return RankStack(
            rank=world.rank,
            node=world.node,
            at=time.time(),
            idle_s=self._idle_time.seconds,
            limit_s=limit_s,
            waits=progress.is_waiting,
            place=progress.place,
        )

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
