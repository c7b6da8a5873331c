"""The report queue: an actor in which the ranks of a Ray Train job wait for the driver at each
report."""

import asyncio
from typing import NamedTuple

from orchestrator.engines.mailbox import Mailbox
from orchestrator.loop.report import Report


class ReportOrdinal(NamedTuple):
    """Place of a report in the order of a run's reports. A report that a later attempt repeats has
    the same place."""

    rounds: int
    """Number of complete rounds in the run, up to this report."""
    is_final: bool
    """True for the last report of a job, which may come within a round."""

    def without_end(self) -> "ReportOrdinal":
        """Return the ordinal that leaves room for the last report of a later job after as many
        rounds."""
        return self._replace(is_final=False)


_NO_REPORT = ReportOrdinal(-1, False)
"""An ordinal before that of any report."""


class ReportQueue(Mailbox):
    """Mailbox in which rank 0 waits at each report, and all ranks with it, until the driver
    requests the next one, so that a trial stops exactly at the report at which a scheduler stops it.

    It is a mailbox as well, so that a run needs one actor and not two. The actor is asynchronous,
    because calls wait in it. If it restarts, Ray repeats the pending calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reports: asyncio.Queue[tuple[ReportOrdinal, Report] | None] = asyncio.Queue()
        self._decision = asyncio.Condition()
        """Notified when the driver lets the ranks continue, or ends them."""
        self._last_put = _NO_REPORT
        """The newest report that rank 0 has sent, in this job or an earlier one; only a newer one
        is delivered."""
        self._last_taken = _NO_REPORT
        """The newest report that the driver has got; its next request releases it."""
        self._last_released = _NO_REPORT
        """The newest report after which the driver has let the ranks continue, as they do at once
        after an older one that they repeat."""
        self._ended = False
        """True once the ranks must end."""

    async def begin(self) -> None:
        """Serve a job, possibly a later one of the same run. Its last report is delivered even if an
        earlier job was interrupted within the same round."""
        self._ended = False
        self._reports = asyncio.Queue()
        self._last_put = self._last_put.without_end()
        self._last_taken = self._last_taken.without_end()
        self._last_released = self._last_released.without_end()

    async def should_train(self) -> bool:
        """Return whether the run should still train."""
        return not self._ended

    async def put(self, ordinal: ReportOrdinal, report: Report) -> bool:
        """Add a report of rank 0; wait, and return whether to continue. A repeated report is not
        delivered again."""
        if ordinal > self._last_put:
            self._last_put = ordinal
            self._reports.put_nowait((ordinal, report))
        async with self._decision:
            await self._decision.wait_for(lambda: self._ended or ordinal <= self._last_released)
        return not self._ended

    async def next(self) -> Report | None:
        """Let the ranks continue after the last report; return the next one, or None at the end of
        the job."""
        async with self._decision:
            self._last_released = self._last_taken
            self._decision.notify_all()
        item = await self._reports.get()
        if item is None:
            await self.close()  # for the next call, which gets None as well
            return None
        self._last_taken, report = item
        return report

    async def end(self) -> None:
        """Make the waiting ranks end."""
        async with self._decision:
            self._ended = True
            self._decision.notify_all()

    async def close(self) -> None:
        """Announce the end of the job."""
        self._reports.put_nowait(None)
