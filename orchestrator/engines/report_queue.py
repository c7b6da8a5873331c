"""The queue: an actor between a Ray Train job and whoever drives it. Imports no torch, so that it starts fast."""

from __future__ import annotations

import asyncio

from orchestrator.engines.mailbox import Mailbox
from orchestrator.loop.report import Report

ReportOrdinal = tuple[int, bool]
"""Where in a run a report stands: which it is of those that count, and whether it is the last. However often it is
made, it is the same."""

_BEFORE: ReportOrdinal = (-1, False)


class ReportQueue(Mailbox):
    """Rank 0's mailbox, and where it waits with a report until the next one is asked for, and all ranks with it.

    So a trial trains no further than the report it is judged by, and one that is stopped ends in order. An actor
    without a CPU of its own; asynchronous, as calls wait in it. One that died and is started again is told everything
    again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: asyncio.Queue[tuple[ReportOrdinal, Report] | None] = asyncio.Queue()
        self._moved = asyncio.Condition()
        self._sent = self._taken = self._behind = _BEFORE
        self._ended = False

    async def wanted(self) -> bool:
        """Whether the run is still to be trained."""
        return not self._ended

    async def put(self, ordinal: ReportOrdinal, report: Report) -> bool:
        """Rank 0 has made a report; waits, and answers whether to go on.

        What was sent before its worker group was replaced is not sent again.
        """
        if ordinal > self._sent:
            self._sent = ordinal
            self._made.put_nowait((ordinal, report))
        async with self._moved:
            await self._moved.wait_for(lambda: self._ended or ordinal <= self._behind)
        return not self._ended

    async def next(self) -> Report | None:
        """Lets the ranks go on from the last report taken; returns the next one, or None where there will be none."""
        async with self._moved:
            self._behind = self._taken
            self._moved.notify_all()
        made = await self._made.get()
        if made is None:
            await self.close()
            return None
        self._taken, report = made
        return report

    async def end(self) -> None:
        """Sends the ranks home from where they wait."""
        async with self._moved:
            self._ended = True
            self._moved.notify_all()

    async def close(self) -> None:
        """The job has ended: there are no more reports."""
        self._made.put_nowait(None)
