"""The queue of reports between a Ray Train job and its driver. Imports no torch, so that it starts fast."""

from __future__ import annotations

import asyncio

from orchestrator.engines.mailbox import Mailbox
from orchestrator.loop.report import Report

ReportOrdinal = tuple[int, bool]
"""Number of a report among those that count, and whether it is the last. A repeated report has the same."""

_BEFORE: ReportOrdinal = (-1, False)


class ReportQueue(Mailbox):
    """A mailbox in which rank 0 waits at each report, and all ranks with it, until the driver asks for the next one.

    So a trial trains no further than the report at which a scheduler stops it. An asynchronous actor, as calls wait in
    it. After its own restart all callers repeat their calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: asyncio.Queue[tuple[ReportOrdinal, Report] | None] = asyncio.Queue()
        self._moved = asyncio.Condition()
        self._sent = self._taken = self._released = _BEFORE
        self._ended = False

    async def begin(self) -> None:
        """Serve a job, perhaps another one of the same run."""
        self._ended, self._made = False, asyncio.Queue()

    async def wanted(self) -> bool:
        """Return whether the run should still train."""
        return not self._ended

    async def put(self, ordinal: ReportOrdinal, report: Report) -> bool:
        """Take a report of rank 0; wait, and return whether to continue. A repeated report is not delivered again."""
        if ordinal > self._sent:
            self._sent = ordinal
            self._made.put_nowait((ordinal, report))
        async with self._moved:
            await self._moved.wait_for(lambda: self._ended or ordinal <= self._released)
        return not self._ended

    async def next(self) -> Report | None:
        """Let the ranks continue after the last report; return the next one, or None when the job is over."""
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
        """End the ranks where they wait."""
        async with self._moved:
            self._ended = True
            self._moved.notify_all()

    async def close(self) -> None:
        """Announce that the job is over."""
        self._made.put_nowait(None)
