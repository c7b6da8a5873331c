"""The mailbox and rank 0's link to it, without Ray: each test decides when calls are answered."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.engines import mailbox
from orchestrator.engines.mailbox import POLL_INTERVAL_S, Mailbox, MailboxLink, ReportQueue
from orchestrator.loop.report import Report


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
    progress = [("progress", "train", number, 20, "") for number in range(7)]
    assert cluster.mailbox.collect(False) == [("line", "first"), *progress, ("line", "second")]
    assert cluster.mailbox.collect(False) == []


def in_event_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(test())


def report(number: int, is_final: bool = False) -> Report:
    return Report(metrics={"number": number}, is_final=is_final)


def put(queue: ReportQueue, report: Report) -> asyncio.Task[bool]:
    """Put a report of rank 0 into the queue."""
    return asyncio.ensure_future(queue.put((report.metrics["number"], report.is_final), report))


async def list_done(*tasks: asyncio.Task[bool]) -> list[bool]:
    """Return which tasks are done, once all others wait."""
    for _ in range(10):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


@in_event_loop
async def test_ranks_wait_at_a_report_until_the_next_is_requested() -> None:
    queue, first, second = ReportQueue(), report(1), report(2, is_final=True)
    first_put = put(queue, first)
    assert await queue.next() == first
    assert await list_done(first_put) == [False]
    next_report = asyncio.ensure_future(queue.next())
    assert await first_put is True
    second_put = put(queue, second)
    assert await next_report == second
    next_report = asyncio.ensure_future(queue.next())
    assert await second_put is True
    await queue.close()
    assert await next_report is None
    assert await queue.next() is None


@in_event_loop
async def test_report_repeated_by_a_new_worker_group_is_delivered_once() -> None:
    queue, first, second = ReportQueue(), report(1), report(2)
    first_put = put(queue, first)
    assert await queue.next() == first
    next_report = asyncio.ensure_future(queue.next())
    assert await first_put is True
    second_put = put(queue, second)
    assert await next_report == second

    # A new group resumes before the first report: the driver has decided on that one, but not on
    # the second.
    assert await put(queue, first) is True
    repeated_put = put(queue, second)
    assert await list_done(second_put, repeated_put) == [False, False]
    third = report(3, is_final=True)
    next_report = asyncio.ensure_future(queue.next())
    assert await repeated_put is True
    put(queue, third)
    assert await next_report == third


@in_event_loop
async def test_report_waits_for_its_own_decision() -> None:
    """A rank is lost while the driver handles its report; the new group resumes from an earlier
    checkpoint."""

    queue, first, second = ReportQueue(), report(1), report(2)
    put(queue, first)
    assert await queue.next() == first
    second_put = put(queue, second)
    assert await list_done(second_put) == [False]
    assert await queue.next() == second
    assert await list_done(second_put) == [False]


@in_event_loop
async def test_partial_last_report_is_delivered() -> None:
    """A partial report, which a later attempt repeats, has the number of the report before."""

    queue, whole, partial = ReportQueue(), report(2), report(2, is_final=True)
    put(queue, whole)
    assert await queue.next() == whole
    next_report = asyncio.ensure_future(queue.next())
    put(queue, partial)
    assert await next_report == partial


@in_event_loop
async def test_ranks_of_a_stopped_trial_end_and_new_ones_do_not_train() -> None:
    queue, first = ReportQueue(), report(1)
    assert await queue.should_train()
    first_put = put(queue, first)
    assert await queue.next() == first
    await queue.end()
    assert await first_put is False
    assert not await queue.should_train()
    assert await put(queue, report(2)) is False
