"""The mailbox and its two ends, without Ray: each test decides when calls are answered."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.engines import mailbox
from orchestrator.engines.mailbox import (
    MAX_PENDING,
    MAX_PRINTED,
    POLL_INTERVAL_S,
    Line,
    Mailbox,
    MailboxLink,
    Progress,
)


class ActorDied(Exception):
    """Ray's error where the actor is gone."""


class Cluster:
    """Replacement of Ray: calls wait in a queue until `serve`; `now` is the time."""

    exceptions = SimpleNamespace(RayActorError=ActorDied)

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.queue: list[tuple[int, Callable[[], Any]]] = []
        self.answers: dict[int, Any] = {}
        self.calls = 0
        self.now = 0.0

    def get_actor(self, name: str) -> Any:
        return SimpleNamespace(post=SimpleNamespace(remote=self._call))

    def _call(self, *messages: Any) -> int:
        self.calls += 1
        self.queue.append((self.calls, lambda: self.mailbox.post(*messages)))
        return self.calls

    def wait(
        self, calls: list[int], num_returns: int, timeout: float
    ) -> tuple[list[int], list[int]]:
        return [call for call in calls if call in self.answers], [
            call for call in calls if call not in self.answers
        ]

    def get(self, call: int) -> Any:
        if isinstance(self.answers[call], Exception):
            raise self.answers[call]
        return self.answers[call]

    def serve(self, count: int | None = None) -> None:
        for call, work in self.queue[:count]:
            self.answers[call] = work()
        del self.queue[:count]

    def die(self) -> None:
        self.answers.update({call: ActorDied() for call, _ in self.queue})
        self.queue.clear()
        self.mailbox = Mailbox()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(mailbox, "ray", cluster)
    monkeypatch.setattr(mailbox, "monotonic", lambda: cluster.now)
    return cluster


def stop_requested_later(cluster: Cluster, link: MailboxLink) -> bool:
    """Return whether rank 0 sees a stop request at its next poll."""
    cluster.now += POLL_INTERVAL_S
    return link.stop_requested()


def test_stop_request_arrives_without_progress_to_show(cluster: Cluster) -> None:
    link = MailboxLink("run")
    assert not link.stop_requested()
    cluster.serve()
    cluster.mailbox.collect(True)
    assert not stop_requested_later(cluster, link), "the last poll came before the request"
    cluster.serve()
    assert stop_requested_later(cluster, link)
    cluster.serve()
    assert stop_requested_later(cluster, link)


def test_stop_requests_are_polled_at_an_interval(cluster: Cluster) -> None:
    link = MailboxLink("run")
    for _ in range(100):
        link.stop_requested()
    assert cluster.calls == 1
    assert not any(stop_requested_later(cluster, link) for _ in range(100))
    assert cluster.calls == 1


def test_stop_request_survives_the_death_of_the_mailbox(cluster: Cluster) -> None:
    link = MailboxLink("run")
    cluster.mailbox.collect(True)
    link.stop_requested()
    cluster.die()
    assert not stop_requested_later(cluster, link)
    cluster.die()
    cluster.mailbox.collect(True)
    assert not stop_requested_later(cluster, link)
    cluster.serve()
    assert stop_requested_later(cluster, link)


def test_lines_arrive_once_and_progress_is_dropped_while_the_mailbox_is_stuck(
    cluster: Cluster,
) -> None:
    link = MailboxLink("run")
    link.line("first")
    for number in range(20):
        link.progress("train", number, 20)
    link.line("second")
    cluster.serve()
    progress = [Progress("train", number, 20) for number in range(7)]
    assert cluster.mailbox.collect(False) == [Line("first"), *progress, Line("second")]
    assert cluster.mailbox.collect(False) == []


def test_printed_lines_arrive_in_their_place_and_are_sent_together(cluster: Cluster) -> None:
    link = MailboxLink("run")
    for number in range(100):
        link.add_printed(f"printed {number}")
    link.line("shown")
    link.add_printed("printed afterwards")
    cluster.serve()
    assert cluster.calls == 1
    printed = [Line(f"printed {number}") for number in range(100)]
    assert cluster.mailbox.collect(False) == [*printed, Line("shown")]
    stop_requested_later(cluster, link)
    cluster.serve()
    assert cluster.mailbox.collect(False) == [Line("printed afterwards")]


def test_printed_lines_wait_while_the_mailbox_is_stuck(cluster: Cluster) -> None:
    link = MailboxLink("run")
    for number in range(MAX_PRINTED + 50):
        link.add_printed(f"printed {number}")
        link.send_printed()
    assert cluster.calls == MAX_PENDING
    link.finish()
    cluster.serve()
    lines = [message.text for message in cluster.mailbox.collect(False)]
    oldest = [f"printed {number}" for number in range(MAX_PENDING)]
    newest = [f"printed {number}" for number in range(50, MAX_PRINTED + 50)]
    assert lines == oldest + newest
