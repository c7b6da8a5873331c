"""The mailbox: an actor that passes lines and progress from rank 0 to the driver, and the driver's
request to stop back."""

import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from hooks.loop_services import Display

MAX_PENDING = 8
"""Number of pending calls at which rank 0 starts to drop progress."""
MAX_PRINTED = 1_000
"""Number of printed lines that wait to be sent; more of them replace the oldest."""
POLL_INTERVAL_S = 0.25
"""Seconds between two checks of rank 0 for a stop request."""


@dataclass(frozen=True)
class Line:
    """A line for the driver's display."""

    text: str

    def show(self, display: "Display") -> None:
        display.line(self.text)


@dataclass(frozen=True)
class Progress:
    """Progress for the driver's display."""

    label: str
    completed: int
    total: int
    text: str = ""

    def show(self, display: "Display") -> None:
        display.progress(self.label, self.completed, self.total, self.text)


Message = Line | Progress


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
        self._printed: deque[str] = deque(maxlen=MAX_PRINTED)

    def line(self, text: str) -> None:
        self._post(Line(text))

    def add_printed(self, text: str) -> None:
        """Add a line to those that are sent with the next message or poll; any thread may call
        it."""
        self._printed.append(text)

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Show progress on the driver, unless too many calls are pending."""
        self._read_answers()
        if len(self._pending) < MAX_PENDING:
            self._post(Progress(label, completed, total, text))

    def stop_requested(self) -> bool:
        """Return whether the driver has asked the run to stop."""
        if monotonic() >= self._next_poll:
            self._next_poll = monotonic() + POLL_INTERVAL_S
            self._poll()
        return self._stop

    def _poll(self) -> None:
        """Read the answers of earlier calls, each of which tells whether to stop. Make a call if no
        answer is to come."""
        self._read_answers()
        if not self._pending:
            self._post()
        else:
            self.send_printed()

    def send_printed(self) -> None:
        """Send the lines that have been printed, unless too many calls are pending."""
        if self._printed and len(self._pending) < MAX_PENDING:
            self._post()

    def finish(self, timeout_s: float = 5.0) -> None:
        if self._printed:
            self._post()
        if self._pending:
            ray.wait(self._pending, num_returns=len(self._pending), timeout=timeout_s)

    def _post(self, *messages: Message) -> None:
        printed = [Line(self._printed.popleft()) for _ in range(len(self._printed))]
        self._pending.append(self._actor.post.remote(*printed, *messages))

    def _read_answers(self) -> None:
        if not self._pending:
            return
        done, self._pending = ray.wait(self._pending, num_returns=len(self._pending), timeout=0)
        for call in done:
            # Ray restarts a mailbox that died, and the driver requests the stop again.
            with suppress(ray.exceptions.RayActorError):
                self._stop = ray.get(call) or self._stop


class DriverMailbox:
    """The driver's end of a mailbox, which it starts. Used in the driver.

    The actor is on the driver's node, to survive the loss of other nodes. `kind` is its class.
    """

    def __init__(self, kind: type[Mailbox]) -> None:
        self.name = f"hookyard-{uuid.uuid4().hex[:12]}"
        own_node = ray.get_runtime_context().get_node_id()
        actor = ray.remote(kind).options(
            name=self.name,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(own_node, soft=False),
        )
        self._actor = actor.remote()
        self._pending: list[Any] = []

    def post_line(self, text: str) -> None:
        """Add a line between those of rank 0; any thread may call it."""
        self._actor.post.remote(Line(text))

    def show_messages(self, display: "Display", *, stop: bool, timeout_s: float) -> None:
        """Show the messages since the last call; `stop` requests the run to stop.

        Messages that do not arrive in time are shown by a later call.
        """
        self._pending.append(self._actor.collect.remote(stop))
        ready, self._pending = ray.wait(
            self._pending, num_returns=len(self._pending), timeout=timeout_s
        )
        for call in ready:
            # The mailbox's actor may have died and been restarted empty.
            with suppress(ray.exceptions.RayActorError):
                for message in ray.get(call):
                    message.show(display)
