"""The collector: one actor of the driver's, to which every rank pushes what it measures as it goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import ray

IN_FLIGHT = 8
"""Pushes a rank may have under way; beyond it a batch is left to the rank's own files."""
KEEP_BYTES = 256 * 2**20
"""What the collector holds in memory; beyond it the oldest batches are dropped, as the files have them."""


class Collector:
    """Holds recent batches, rank 0's lines and progress, and whether the run was asked to stop.

    Runs as an actor without a CPU of its own; imports neither torch nor pandas, so that it starts fast. It is for the
    live view, and for tables where ranks write to disks the driver cannot see; the ranks' files are the truth.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._news: deque[tuple[Any, ...]] = deque(maxlen=10_000)
        self._stop = False

    def push(self, table: str, batch: bytes) -> bool:
        """Takes a batch; answers whether the run was asked to stop."""
        self._batches.append((table, batch))
        self._bytes += len(batch)
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
    """A rank's way to the collector: a sink, a display, and the ear for a stop. Worker process; never waits."""

    def __init__(self, name: str) -> None:
        self._actor = ray.get_actor(name)
        self._in_flight: list[Any] = []
        self._stop = False
        self.dropped = 0

    def push(self, table: str, batch: bytes) -> None:
        """Sends a batch, unless too many are under way already."""
        self._hear()
        if len(self._in_flight) >= IN_FLIGHT:
            self.dropped += 1
            return
        self._in_flight.append(self._actor.push.remote(table, batch))

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
        """Waits for what is under way, at the end."""
        ray.wait(self._in_flight, num_returns=len(self._in_flight), timeout=timeout_s) if self._in_flight else None

    def _hear(self) -> None:
        if not self._in_flight:
            return
        done, self._in_flight = ray.wait(self._in_flight, num_returns=len(self._in_flight), timeout=0)
        try:
            self._stop = self._stop or any(ray.get(done))
        except ray.exceptions.RayActorError:
            self.dropped += len(done)
