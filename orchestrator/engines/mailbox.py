"""Actors that pass lines, progress and reports from rank 0 to the driver, and requests back."""

import asyncio
import uuid
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.loop.report import Report

MAX_PENDING = 8
"""Number of pending calls at which rank 0 starts to drop progress."""
POLL_INTERVAL_S = 0.25
"""Seconds between two checks of rank 0 for a stop request."""

Message = tuple[Any, ...]
"""`("line", text)` or `("progress", label, completed, total, text)`."""


class Mailbox:
    """Buffer of rank 0's messages for the driver, and of the driver's request to stop.

    The actor reserves no CPU. It imports neither torch nor pandas, so it starts fast.
    """

    def __init__(self) -> None:
        self._messages: deque[Message] = deque(maxlen=10_000)
        self._stop = False

    def post(self, *messages: Message) -> bool:
        """Add messages; return whether the run should stop."""
        self._messages.extend(messages)
        return self._stop

    def collect(self, stop: bool) -> list[Message]:
        """Return the messages since the last call; `stop` requests the run to stop."""
        self._stop = stop
        messages = list(self._messages)
        self._messages.clear()
        return messages


class MailboxLink:
    """Display of rank 0 that posts to the mailbox, and reads its stop request. Never blocks. Used
    in workers."""

    def __init__(self, name: str) -> None:
        self._actor = ray.get_actor(name)
        self._pending: list[Any] = []
        self._next_poll = monotonic()
        self._stop = False

    def line(self, text: str) -> None:
        self._post(("line", text))

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Show progress on the driver, unless too many calls are pending."""
        self._poll()
        if len(self._pending) < MAX_PENDING:
            self._post(("progress", label, completed, total, text))

    def stop_requested(self) -> bool:
        """Return whether the driver has asked the run to stop."""
        if monotonic() >= self._next_poll:
            self._next_poll = monotonic() + POLL_INTERVAL_S
            self._poll()
            if not self._pending:
                self._post()
        return self._stop

    def finish(self, timeout_s: float = 5.0) -> None:
        if self._pending:
            ray.wait(self._pending, num_returns=len(self._pending), timeout=timeout_s)

    def _post(self, *messages: Message) -> None:
        self._pending.append(self._actor.post.remote(*messages))

    def _poll(self) -> None:
        if not self._pending:
            return
        done, self._pending = ray.wait(self._pending, num_returns=len(self._pending), timeout=0)
        for call in done:
            # Ray restarts a mailbox that died, and the driver requests the stop again.
            with suppress(ray.exceptions.RayActorError):
                self._stop = ray.get(call) or self._stop


def start_mailbox(kind: type[Mailbox]) -> tuple[str, Any]:
    """Start a mailbox; return its name and actor. It is on the driver's node, to survive the loss
    of other nodes."""
    name = f"hookyard-{uuid.uuid4().hex[:12]}"
    own_node = ray.get_runtime_context().get_node_id()
    actor = ray.remote(kind).options(
        name=name,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(own_node, soft=False),
    )
    return name, actor.remote()


ReportOrdinal = tuple[int, bool]
"""Number of a report, and whether it is the last. A report that a later attempt repeats has the
same number."""

_NO_REPORT: ReportOrdinal = (-1, False)


class ReportQueue(Mailbox):
    """Mailbox in which rank 0 waits at each report, and all ranks with it, until the driver
    requests the next one.

    So a trial stops exactly at the report at which a scheduler stops it. The actor is asynchronous,
    because calls wait in it. If the actor restarts, Ray repeats the pending calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reports: asyncio.Queue[tuple[ReportOrdinal, Report] | None] = asyncio.Queue()
        self._decision = asyncio.Condition()
        """Notified when the driver lets the ranks continue, or ends them."""
        self._last_put = self._last_taken = self._last_released = _NO_REPORT
        self._ended = False

    async def begin(self) -> None:
        """Serve a job, possibly a later one of the same run."""
        self._ended = False
        self._reports = asyncio.Queue()

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
            await self.close()
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
