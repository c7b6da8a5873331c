"""The queue of reports between a Ray Train job and its driver. Does not import torch, so it starts fast."""

from __future__ import annotations

import asyncio

from orchestrator.engines.mailbox import Mailbox
from orchestrator.loop.report import Report

ReportOrdinal = tuple[int, bool]
"""Number of a report, and whether it is the last. A report that a later attempt repeats has the same number."""

_BEFORE: ReportOrdinal = (-1, False)


class ReportQueue(Mailbox):
    """Mailbox in which rank 0 waits at each report, and all ranks with it, until the driver requests the next one.

    So a trial stops exactly at the report at which a scheduler stops it. The actor is asynchronous, because calls wait
    in it. If the actor restarts, Ray repeats the pending calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: asyncio.Queue[tuple[ReportOrdinal, Report] | None] = asyncio.Queue()
        self._moved = asyncio.Condition()
        self._sent = self._taken = self._released = _BEFORE
        self._ended = False

    async def begin(self) -> None:
        """Serve a job, possibly a later one of the same run."""
        self._ended, self._made = False, asyncio.Queue()

    async def should_train(self) -> bool:
        """Return whether the run should still train."""
        return not self._ended

    async def put(self, ordinal: ReportOrdinal, report: Report) -> bool:
        """Add a report of rank 0; wait, and return whether to continue. A repeated report is not delivered again."""
        if ordinal > self._sent:
            self._sent = ordinal
            self._made.put_nowait((ordinal, report))
        async with self._moved:
            await self._moved.wait_for(lambda: self._ended or ordinal <= self._released)
        return not self._ended

    async def next(self) -> Report | None:
        """Let the ranks continue after the last report; return the next one, or None at the end of the job."""
        async with self._moved:
            self._released = self._taken
            self._moved.notify_all()
        item = await self._made.get()
        if item is None:
            await self.close()
            return None
        self._taken, report = item
        return report

    async def end(self) -> None:
        """Make the waiting ranks end."""
        async with self._moved:
            self._ended = True
            self._moved.notify_all()

    async def close(self) -> None:
        """Announce the end of the job."""
        self._made.put_nowait(None)
