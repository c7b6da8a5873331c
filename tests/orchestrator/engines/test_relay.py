"""The relay between a Ray Train job and whoever drives it: who waits for whom, and what is told twice."""

from __future__ import annotations

import asyncio

from orchestrator.engines.relay import Relay
from orchestrator.loop.report import Report


def report(number: int, final: bool = False) -> Report:
    return Report(metrics={"number": number}, final=final)


def source_location(made: Report) -> tuple[int, bool]:
    return made.metrics["number"], made.final


def bring(relay: Relay, made: Report) -> asyncio.Task[bool]:
    """Rank 0 has made a report."""
    return asyncio.ensure_future(relay.put(source_location(made), made))


async def settled(*tasks: asyncio.Task[bool]) -> list[bool]:
    """Which of the calls do not wait, once all have come as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


def test_ranks_wait_at_a_report_until_the_next_is_asked_for() -> None:
    async def story() -> None:
        relay, first, second = Relay(), report(1), report(2, final=True)
        waits = bring(relay, first)
        assert await relay.next() == first
        assert await settled(waits) == [False]
        asked = asyncio.ensure_future(relay.next())
        assert await waits is True
        last = bring(relay, second)
        assert await asked == second
        over = asyncio.ensure_future(relay.next())
        assert await last is True
        await relay.close()
        assert await over is None
        assert await relay.next() is None

    asyncio.run(story())


def test_a_report_that_a_new_worker_group_makes_again_is_told_once() -> None:
    async def story() -> None:
        relay, first, second = Relay(), report(1), report(2)
        gone = bring(relay, first)
        assert await relay.next() == first
        asked = asyncio.ensure_future(relay.next())
        assert await gone is True
        waits = bring(relay, second)
        assert await asked == second

        # A new group goes on from before the first report: that one is decided, the second is not.
        assert await bring(relay, first) is True
        again = bring(relay, second)
        assert await settled(waits, again) == [False, False]
        third = report(3, final=True)
        asked = asyncio.ensure_future(relay.next())
        assert await again is True
        bring(relay, third)
        assert await asked == third

    asyncio.run(story())


def test_a_report_ahead_of_the_decision_waits_for_its_own() -> None:
    """A rank is lost while its report is judged; the new group goes on from a checkpoint behind it."""

    async def story() -> None:
        relay, first, second = Relay(), report(1), report(2)
        bring(relay, first)
        assert await relay.next() == first
        ahead = bring(relay, second)
        assert await settled(ahead) == [False]
        assert await relay.next() == second
        assert await settled(ahead) == [False]

    asyncio.run(story())


def test_a_run_cut_short_after_a_report_is_told_as_its_last() -> None:
    """What ends in the middle of training is not written down, so it has the number of the report before."""

    async def story() -> None:
        relay, whole, cut_short = Relay(), report(2), report(2, final=True)
        bring(relay, whole)
        assert await relay.next() == whole
        asked = asyncio.ensure_future(relay.next())
        bring(relay, cut_short)
        assert await asked == cut_short

    asyncio.run(story())


def test_ranks_of_a_trial_that_is_stopped_go_home_and_new_ones_do_not_begin() -> None:
    async def story() -> None:
        relay, first = Relay(), report(1)
        assert await relay.wanted()
        waits = bring(relay, first)
        assert await relay.next() == first
        await relay.end()
        assert await waits is False
        assert not await relay.wanted()
        assert await bring(relay, report(2)) is False

    asyncio.run(story())


def test_a_relay_that_died_is_told_again_what_waits() -> None:
    """Ray makes the calls that were under way again, on the new one."""

    async def story() -> None:
        relay, second = Relay(), report(2)
        asked = asyncio.ensure_future(relay.next())
        waits = bring(relay, second)
        assert await asked == second
        again = asyncio.ensure_future(relay.next())
        assert await waits is True
        await relay.close()
        assert await again is None

    asyncio.run(story())


def test_it_is_rank_0s_mailbox_too() -> None:
    async def story() -> None:
        relay = Relay()
        assert relay.post(("line", "one")) is False
        assert relay.collect(stop=True) == [("line", "one")]
        assert relay.post() is True

    asyncio.run(story())
