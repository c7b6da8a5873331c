"""An actor that passes lines and progress from rank 0 to the driver, and a stop request back."""

from __future__ import annotations

import uuid
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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
        messages, self._messages = list(self._messages), deque(maxlen=10_000)
        return messages


class MailboxLink:
    """Display of rank 0 that posts to the mailbox, and reads its stop request. Never blocks. Used in workers."""

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
    """Start a mailbox; return its name and actor. It is on the driver's node, to survive the loss of other nodes."""
    name, here = f"hookyard-{uuid.uuid4().hex[:12]}", ray.get_runtime_context().get_node_id()
    actor = ray.remote(kind).options(
        name=name,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    return name, actor.remote()
