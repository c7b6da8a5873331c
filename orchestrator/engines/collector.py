"""The collector: one actor of the driver's, to which every rank pushes what it measures as it goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

import ray

PUSHES_PER_S = 1000
"""How often all ranks together push: with more of them each pushes more rarely, and more at once. A push takes a third to a
half of a millisecond of the collector's core, nearly whatever is in it."""
WAITING_BYTES = 2**30
"""What all ranks together may have waiting and under way; beyond its share a rank leaves the oldest to its files."""
KEEP_BYTES = 256 * 2**20
"""What the collector holds in memory; beyond it the oldest batches are dropped, as the files have them."""
IN_FLIGHT = 8
"""Calls a rank may have under way before it leaves out the progress it has to show."""

Batch = tuple[str, bytes]
"""A table's name, and some of its rows as an Arrow IPC stream."""


class Collector:
    """Holds recent batches, rank 0's lines and progress, and whether the run was asked to stop.

    Runs as an actor without a CPU of its own; imports neither torch nor pandas, so that it starts fast. It is for the
    live view, and for tables where ranks write to disks the driver cannot see; the ranks' files are the truth.
    """

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._news: deque[tuple[Any, ...]] = deque(maxlen=10_000)
        self._stop = False

    def push(self, batches: Sequence[Batch]) -> bool:
        """Takes batches; answers whether the run was asked to stop."""
        for batch in batches:
            self._batches.append(batch)
            self._bytes += len(batch[1])
        while self._bytes > KEEP_BYTES:
            self._bytes -= len(self._batches.popleft()[1])
        return self._stop

    def show(self, news: Sequence[tuple[Any, ...]]) -> bool:
        """Takes `("line", text)`, `("progress", label, completed, total, text)`, and how the run ended."""
        self._news.extend(news)
        return self._stop

    def drain(self) -> list[tuple[Any, ...]]:
        """What was shown since the last call."""
        news, self._news = list(self._news), deque(maxlen=10_000)
        return news

    def stop(self) -> None:
        """Asks the ranks to save and end; they hear it with their next push."""
        self._stop = True

    def batches(self, table: str) -> list[bytes]:
        """The batches of a table still held."""
        return [batch for name, batch in self._batches if name == table]


class CollectorLink:
    """A rank's way to the collector: a sink, a display, and the ear for a stop. Worker process; never waits.

    Batches wait here until it is this rank's turn and its last push has been answered, then go together. Turns are
    spread evenly over the ranks. So a collector that falls behind is pushed to more rarely, and no more than one push
    of each rank lies before it.
    """

    def __init__(self, name: str, rank: int, world_size: int) -> None:
        self._actor = ray.get_actor(name)
        self._pace_s = world_size / PUSHES_PER_S
        self._share_bytes = WAITING_BYTES // world_size
        self._waiting: deque[Batch] = deque()
        self._waiting_bytes = 0
        self._in_flight: list[Any] = []
        self._push: Any = None
        self._pushed = 0
        """Batches in the push that is under way."""
        self._turn = monotonic() + self._pace_s * rank / world_size
        self._stop = False
        self.dropped = 0
        """Batches that were left to the files."""

    def push(self, table: str, batch: bytes) -> None:
        """Takes a batch, and sends those that wait if it is time to."""
        self._waiting.append((table, batch))
        self._waiting_bytes += len(batch)
        while self._waiting_bytes > self._share_bytes:
            self._waiting_bytes -= len(self._waiting.popleft()[1])
            self.dropped += 1
        self._hear()
        if self._push is None and monotonic() >= self._turn:
            self._send()

    def line(self, text: str) -> None:
        """Shows a line on the driver."""
        self._in_flight.append(self._actor.show.remote([("line", text)]))

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Moves a bar on the driver; left out while too much is under way."""
        self._hear()
        if len(self._in_flight) < IN_FLIGHT:
            self._in_flight.append(self._actor.show.remote([("progress", label, completed, total, text)]))

    def ended(self, reasons: Sequence[str], interrupted: bool) -> None:
        """Tells the driver why the run ended before its time."""
        self._in_flight.append(self._actor.show.remote([("ended", list(reasons), interrupted)]))

    def stop_asked(self) -> bool:
        """Whether the driver asked the run to stop, as far as this rank has heard."""
        return self._stop

    def finish(self, timeout_s: float = 5.0) -> None:
        """Sends what waits, and waits for what is under way, at the end."""
        if self._waiting:
            self._send()
        if self._in_flight:
            ray.wait(self._in_flight, num_returns=len(self._in_flight), timeout=timeout_s)

    def _send(self) -> None:
        self._push, self._pushed = self._actor.push.remote(list(self._waiting)), len(self._waiting)
        self._in_flight.append(self._push)
        self._turn = monotonic() + self._pace_s
        self._waiting.clear()
        self._waiting_bytes = 0

    def _hear(self) -> None:
        if not self._in_flight:
            return
        done, self._in_flight = ray.wait(self._in_flight, num_returns=len(self._in_flight), timeout=0)
        for call in done:
            try:
                self._stop = ray.get(call) or self._stop
            except ray.exceptions.RayActorError:
                self.dropped += self._pushed if call == self._push else 0
            if call == self._push:
                self._push = None
