"""The queue between a Ray Train job and whoever drives it: who waits for whom, and what is told twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from orchestrator.engines.report_queue import ReportQueue
from orchestrator.loop.report import Report


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
