"""An actor between rank 0 and the driver: for lines and progress one way, and a request to stop the other way."""

from __future__ import annotations

import uuid
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

IN_FLIGHT = 8
"""Pending calls from which on rank 0 drops progress."""
ASK_EVERY_S = 0.25
"""Seconds between two questions of rank 0 whether to stop."""

News = tuple[Any, ...]
"""`("line", text)` or `("progress", label, completed, total, text)`."""


class Mailbox:
    """Buffer of rank 0's messages for the driver, and of the driver's request to stop.

    An actor without a CPU. It imports neither torch nor pandas, so that it starts fast.
    """

    def __init__(self) -> None:
        self._news: deque[News] = deque(maxlen=10_000)
        self._stop = False

    def post(self, *news: News) -> bool:
        """Take news; return whether the run should stop."""
        self._news.extend(news)
        return self._stop

    def collect(self, stop: bool) -> list[News]:
        """Return the news since the last call; `stop` asks the run to stop."""
        self._stop = stop
        news, self._news = list(self._news), deque(maxlen=10_000)
        return news


class MailboxLink:
    """Rank 0's end of the mailbox: a display, and the request to stop. Used in workers; never blocks."""

    def __init__(self, name: str) -> None:
        self._actor = ray.get_actor(name)
        self._in_flight: list[Any] = []
        self._ask_at = monotonic()
        self._stop = False

    def line(self, text: str) -> None:
        self._post(("line", text))

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Show progress on the driver, unless too many calls are pending."""
        self._poll()
        if len(self._in_flight) < IN_FLIGHT:
            self._post(("progress", label, completed, total, text))

    def stop_requested(self) -> bool:
        """Return whether the driver has asked the run to stop."""
        if monotonic() >= self._ask_at:
            self._ask_at = monotonic() + ASK_EVERY_S
            self._poll()
            if not self._in_flight:
                self._post()
        return self._stop

    def finish(self, timeout_s: float = 5.0) -> None:
        if self._in_flight:
            ray.wait(self._in_flight, num_returns=len(self._in_flight), timeout=timeout_s)

    def _post(self, *news: News) -> None:
        self._in_flight.append(self._actor.post.remote(*news))

    def _poll(self) -> None:
        if not self._in_flight:
            return
        done, self._in_flight = ray.wait(self._in_flight, num_returns=len(self._in_flight), timeout=0)
        for call in done:
            # Ray restarts a mailbox that died, and the driver repeats its request.
            with suppress(ray.exceptions.RayActorError):
                self._stop = ray.get(call) or self._stop


def start_mailbox(kind: type[Mailbox]) -> tuple[str, Any]:
    """Start a mailbox; return its name and actor. On the driver's node, so that it survives the loss of another one."""
    name, here = f"hookyard-{uuid.uuid4().hex[:12]}", ray.get_runtime_context().get_node_id()
    actor = ray.remote(kind).options(
        name=name,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    return name, actor.remote()
