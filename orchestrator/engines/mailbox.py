"""Rank 0's mailbox: an actor of the driver's, through which rank 0 and the driver hear of each other."""

from __future__ import annotations

import uuid
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

IN_FLIGHT = 8
"""Calls that may be under way before rank 0 leaves out the progress it has to show."""
ASK_EVERY_S = 0.25
"""How often rank 0 asks whether the run is to stop."""

News = tuple[Any, ...]
"""`("line", text)` or `("progress", label, completed, total, text)`."""


class Mailbox:
    """Keeps what rank 0 has to show until the driver collects it, and the driver's wish to stop.

    Runs as an actor without a CPU of its own; imports neither torch nor pandas, so that it starts fast.
    """

    def __init__(self) -> None:
        self._news: deque[News] = deque(maxlen=10_000)
        self._stop = False

    def post(self, *news: News) -> bool:
        """Takes news; answers whether the run is to stop."""
        self._news.extend(news)
        return self._stop

    def collect(self, stop: bool) -> list[News]:
        """The news since the last call; `stop` is whether the run is to stop."""
        self._stop = stop
        news, self._news = list(self._news), deque(maxlen=10_000)
        return news


class MailboxLink:
    """Rank 0's way to the mailbox: a display, and the ear for a wish to stop. Worker process; never waits."""

    def __init__(self, name: str) -> None:
        self._actor = ray.get_actor(name)
        self._in_flight: list[Any] = []
        self._ask_at = monotonic()
        self._stop = False

    def line(self, text: str) -> None:
        """Shows a line on the driver."""
        self._post(("line", text))

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Moves a bar on the driver; left out while too much is under way."""
        self._poll()
        if len(self._in_flight) < IN_FLIGHT:
            self._post(("progress", label, completed, total, text))

    def stop_asked(self) -> bool:
        """Whether the driver asked the run to stop, as far as rank 0 has heard."""
        if monotonic() >= self._ask_at:
            self._ask_at = monotonic() + ASK_EVERY_S
            self._poll()
            if not self._in_flight:
                self._post()
        return self._stop

    def finish(self, timeout_s: float = 5.0) -> None:
        """Waits for what is under way, at the end."""
        if self._in_flight:
            ray.wait(self._in_flight, num_returns=len(self._in_flight), timeout=timeout_s)

    def _post(self, *news: News) -> None:
        self._in_flight.append(self._actor.post.remote(*news))

    def _poll(self) -> None:
        if not self._in_flight:
            return
        done, self._in_flight = ray.wait(self._in_flight, num_returns=len(self._in_flight), timeout=0)
        for call in done:
            # One that has died is started again, and the driver tells it again.
            with suppress(ray.exceptions.RayActorError):
                self._stop = ray.get(call) or self._stop


def start_mailbox(kind: type[Mailbox]) -> tuple[str, Any]:
    """The name of a new mailbox, and its actor. On the driver's node, as another that goes down would take along what
    is to be told of it."""
    name, here = f"hookyard-{uuid.uuid4().hex[:12]}", ray.get_runtime_context().get_node_id()
    actor = ray.remote(kind).options(
        name=name,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    return name, actor.remote()
