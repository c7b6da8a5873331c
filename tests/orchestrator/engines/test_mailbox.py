"""The mailbox and rank 0's link to it, without Ray: calls are answered when the test says so."""

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
    """Stands in for Ray: calls lie in a queue until `serve`; `now` is the time."""

    exceptions = SimpleNamespace(RayActorError=ActorDied)

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.queue: list[tuple[int, Callable[[], Any]]] = []
        self.answers: dict[int, Any] = {}
        self.calls = 0
        self.now = 0.0

    def get_actor(self, name: str) -> Any:
        return SimpleNamespace(post=SimpleNamespace(remote=self._call))

    def _call(self, *given: Any) -> int:
        self.calls += 1
        self.queue.append((self.calls, lambda: self.mailbox.post(*given)))
        return self.calls

    def wait(self, calls: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return [call for call in calls if call in self.answers], [call for call in calls if call not in self.answers]

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
    made = Cluster()
    monkeypatch.setattr(mailbox, "ray", made)
    monkeypatch.setattr(mailbox, "monotonic", lambda: made.now)
    return made


def heard(cluster: Cluster, link: MailboxLink) -> bool:
    """What rank 0 has heard a while later."""
    cluster.now += POLL_INTERVAL_S
    return link.stop_requested()


def test_stop_request_arrives_without_progress_to_show(cluster: Cluster) -> None:
    link = MailboxLink("run")
    assert not link.stop_requested()
    cluster.serve()
    cluster.mailbox.collect(True)
    assert not heard(cluster, link), "asked before the wish was there"
    cluster.serve()
    assert heard(cluster, link)
    cluster.serve()
    assert heard(cluster, link)


def test_stop_requests_are_polled_at_an_interval(cluster: Cluster) -> None:
    link = MailboxLink("run")
    for _ in range(100):
        link.stop_requested()
    assert cluster.calls == 1
    assert not any(heard(cluster, link) for _ in range(100))
    assert cluster.calls == 1


def test_stop_request_survives_the_death_of_the_mailbox(cluster: Cluster) -> None:
    link = MailboxLink("run")
    cluster.mailbox.collect(True)
    link.stop_requested()
    cluster.die()
    assert not heard(cluster, link)
    cluster.die()
    cluster.mailbox.collect(True)
    assert not heard(cluster, link)
    cluster.serve()
    assert heard(cluster, link)


def test_lines_arrive_once_and_progress_is_dropped_while_the_mailbox_is_stuck(cluster: Cluster) -> None:
    link = MailboxLink("run")
    link.line("first")
    for number in range(20):
        link.progress("train", number, 20)
    link.line("second")
    cluster.serve()
    news = cluster.mailbox.collect(False)
    bars = [("progress", "train", n, 20, "") for n in range(7)]
    assert news == [("line", "first"), *bars, ("line", "second")]
    assert cluster.mailbox.collect(False) == []


def in_event_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(test())


def report(number: int, is_final: bool = False) -> Report:
    return Report(metrics={"number": number}, is_final=is_final)


def source_location(made: Report) -> tuple[int, bool]:
    return made.metrics["number"], made.is_final


def bring(queue: ReportQueue, made: Report) -> asyncio.Task[bool]:
    """Rank 0 has made a report."""
    return asyncio.ensure_future(queue.put(source_location(made), made))


async def settled(*tasks: asyncio.Task[bool]) -> list[bool]:
    """Which of the calls do not wait, once all have come as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


@in_event_loop
async def test_ranks_wait_at_a_report_until_the_next_is_asked_for() -> None:
    queue, first, second = ReportQueue(), report(1), report(2, is_final=True)
    waits = bring(queue, first)
    assert await queue.next() == first
    assert await settled(waits) == [False]
    asked = asyncio.ensure_future(queue.next())
    assert await waits is True
    last = bring(queue, second)
    assert await asked == second
    over = asyncio.ensure_future(queue.next())
    assert await last is True
    await queue.close()
    assert await over is None
    assert await queue.next() is None


@in_event_loop
async def test_a_report_that_a_new_worker_group_makes_again_is_told_once() -> None:
    queue, first, second = ReportQueue(), report(1), report(2)
    gone = bring(queue, first)
    assert await queue.next() == first
    asked = asyncio.ensure_future(queue.next())
    assert await gone is True
    waits = bring(queue, second)
    assert await asked == second

    # A new group goes on from before the first report: that one is decided, the second is not.
    assert await bring(queue, first) is True
    again = bring(queue, second)
    assert await settled(waits, again) == [False, False]
    third = report(3, is_final=True)
    asked = asyncio.ensure_future(queue.next())
    assert await again is True
    bring(queue, third)
    assert await asked == third


@in_event_loop
async def test_a_report_ahead_of_the_decision_waits_for_its_own() -> None:
    """A rank is lost while the driver handles its report; the new group resumes from an earlier checkpoint."""

    queue, first, second = ReportQueue(), report(1), report(2)
    bring(queue, first)
    assert await queue.next() == first
    ahead = bring(queue, second)
    assert await settled(ahead) == [False]
    assert await queue.next() == second
    assert await settled(ahead) == [False]


@in_event_loop
async def test_a_run_cut_short_after_a_report_is_told_as_its_last() -> None:
    """What ends in the middle of training is not written down, so it has the number of the report before."""

    queue, whole, is_partial = ReportQueue(), report(2), report(2, is_final=True)
    bring(queue, whole)
    assert await queue.next() == whole
    asked = asyncio.ensure_future(queue.next())
    bring(queue, is_partial)
    assert await asked == is_partial


@in_event_loop
async def test_ranks_of_a_trial_that_is_stopped_go_home_and_new_ones_do_not_begin() -> None:
    queue, first = ReportQueue(), report(1)
    assert await queue.should_train()
    waits = bring(queue, first)
    assert await queue.next() == first
    await queue.end()
    assert await waits is False
    assert not await queue.should_train()
    assert await bring(queue, report(2)) is False
