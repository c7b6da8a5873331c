"""The report queue without Ray, in an event loop of each test."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from orchestrator.engines.report_queue import ReportOrdinal, ReportQueue
from orchestrator.loop.report import Report


def in_event_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(test())


def report(number: int, is_final: bool = False) -> Report:
    return Report(metrics={"number": number}, is_final=is_final)


def put(queue: ReportQueue, report: Report) -> asyncio.Task[bool]:
    """Put a report of rank 0 into the queue."""
    ordinal = ReportOrdinal(report.metrics["number"], report.is_final)
    return asyncio.ensure_future(queue.put(ordinal, report))


async def list_done(*tasks: asyncio.Task[Any]) -> list[bool]:
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
async def test_second_interruption_within_a_round_is_delivered() -> None:
    """A run is preempted within its third round, and its next job again: both partial reports come
    after two rounds."""

    queue = ReportQueue()
    interrupted, again = report(2, is_final=True), report(2, is_final=True)
    first_put = put(queue, interrupted)
    assert await queue.next() is interrupted
    await queue.end()
    assert await first_put is False

    await queue.begin()
    next_report = asyncio.ensure_future(queue.next())
    assert await list_done(next_report) == [False]
    second_put = put(queue, again)
    assert await list_done(second_put) == [False], "the driver has not decided on this report"
    await queue.close()
    assert await next_report is again
    assert await queue.next() is None
    assert await second_put is True


@in_event_loop
async def test_round_that_a_later_job_repeats_is_delivered_once() -> None:
    """A run is interrupted after its third round, whose checkpoint is lost, so the next job repeats
    the round."""

    queue, last = ReportQueue(), report(3, is_final=True)
    put(queue, last)
    assert await queue.next() is last
    await queue.end()

    await queue.begin()
    next_report = asyncio.ensure_future(queue.next())
    assert await put(queue, report(3)) is True
    fourth = report(4)
    put(queue, fourth)
    assert await next_report is fourth


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
