"""The collector and its links, without Ray: calls are answered when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.engines import collector
from orchestrator.engines.collector import Collector, CollectorLink


class ActorDied(Exception):
    """Ray's error where the actor is gone."""


class Cluster:
    """Stands in for Ray: calls lie in a queue until `serve`; `now` is the time."""

    exceptions = SimpleNamespace(RayActorError=ActorDied)

    def __init__(self) -> None:
        self.collector = Collector()
        self.queue: list[tuple[int, Callable[[], Any]]] = []
        self.answers: dict[int, Any] = {}
        self.calls = 0
        self.now = 0.0

    def get_actor(self, name: str) -> Any:
        return SimpleNamespace(
            **{name: SimpleNamespace(remote=lambda *given, call=name: self._call(call, given)) for name in ("push", "show")}
        )

    def _call(self, name: str, given: tuple[Any, ...]) -> int:
        self.calls += 1
        self.queue.append((self.calls, lambda: getattr(self.collector, name)(*given)))
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
        self.collector = Collector()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(collector, "ray", made)
    monkeypatch.setattr(collector, "monotonic", lambda: made.now)
    return made


def pushed(cluster: Cluster, link: CollectorLink, batches: Sequence[bytes]) -> list[bytes]:
    """What the collector holds once some more batches were pushed and all calls were answered."""
    for batch in batches:
        link.push("rows", batch)
        cluster.serve()
    return cluster.collector.batches("rows")


def test_a_table_is_told_from_the_other() -> None:
    held = Collector()
    held.push([("rows", b"1"), ("costs", b"2"), ("rows", b"3")])
    assert (held.batches("rows"), held.batches("costs")) == ([b"1", b"3"], [b"2"])


def test_what_the_collector_holds_is_bounded_and_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "KEEP_BYTES", 10)
    held = Collector()
    for number in range(100):
        held.push([("rows", b"%02d" % number)] * 2)
        assert sum(map(len, held.batches("rows"))) <= 10
    assert held.batches("rows") == [b"97", b"98", b"98", b"99", b"99"]


def test_a_few_ranks_push_every_batch_as_it_comes(cluster: Cluster) -> None:
    link = CollectorLink("run", 0, 2)
    assert pushed(cluster, link, [b"1"]) == [b"1"]
    cluster.now = 1.0
    assert pushed(cluster, link, [b"2"]) == [b"1", b"2"]
    assert link.dropped == 0


def test_many_ranks_take_turns_and_push_what_has_gathered(cluster: Cluster) -> None:
    """8,192 ranks have 8.192 s between two pushes of each, and rank r begins at r / 1000 s."""
    first, late = CollectorLink("run", 0, 8192), CollectorLink("run", 4096, 8192)
    counts = []
    for second in range(18):
        cluster.now = float(second)
        before = cluster.calls
        for link in (first, late):
            link.push("rows", b"%d" % second)
        cluster.serve()
        counts.append(cluster.calls - before)
    assert [second for second, count in enumerate(counts) if count] == [0, 5, 9, 14]
    turns = [range(1), range(6), range(1, 10), range(6, 15)]
    assert cluster.collector.batches("rows") == [b"%d" % second for turn in turns for second in turn]


def test_a_rank_has_one_push_under_way_and_no_more(cluster: Cluster) -> None:
    link = CollectorLink("run", 0, 1)
    for number in range(50):
        cluster.now += 1
        link.push("rows", b"%d" % number)
    assert len(cluster.queue) == 1
    cluster.serve()
    assert pushed(cluster, link, [b"last"]) == [*(b"%d" % number for number in range(50)), b"last"]


def test_what_a_stuck_collector_leaves_waiting_is_bounded_and_the_oldest_is_shed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "WAITING_BYTES", 40)
    link = CollectorLink("run", 0, 4)
    for number in range(20):
        cluster.now += 1
        link.push("rows", b"%02d" % number)
    assert link.dropped == 20 - 1 - 5, "one is under way, and ten bytes are this rank's share"
    cluster.serve()
    cluster.now += 1
    assert pushed(cluster, link, [b"20"]) == [b"00", b"16", b"17", b"18", b"19", b"20"]
    assert link.dropped == 15


def test_what_died_with_the_collector_is_counted_and_the_next_push_arrives(cluster: Cluster) -> None:
    link = CollectorLink("run", 0, 1)
    link.push("rows", b"1")
    link.line("lost too, and no batch")
    cluster.die()
    cluster.now = 1.0
    assert pushed(cluster, link, [b"2"]) == [b"2"]
    assert link.dropped == 1


def test_a_wish_to_stop_is_heard_with_the_next_answer(cluster: Cluster) -> None:
    link = CollectorLink("run", 0, 1)
    pushed(cluster, link, [b"1"])
    cluster.collector.stop()
    cluster.now = 1.0
    link.push("rows", b"2")
    assert not link.stop_asked()
    cluster.serve()
    link.push("rows", b"3")
    assert link.stop_asked()


def test_at_the_end_all_that_waits_is_sent(cluster: Cluster) -> None:
    link = CollectorLink("run", 4095, 8192)
    link.push("rows", b"1")
    link.push("costs", b"2")
    assert cluster.calls == 0
    link.finish()
    cluster.serve()
    assert (cluster.collector.batches("rows"), cluster.collector.batches("costs")) == ([b"1"], [b"2"])


def test_lines_are_drained_once_and_progress_is_left_out_behind_a_stuck_collector(cluster: Cluster) -> None:
    link = CollectorLink("run", 0, 1)
    link.line("first")
    for number in range(20):
        link.progress("train", number, 20)
    link.line("second")
    cluster.serve()
    news = cluster.collector.drain()
    assert news == [("line", "first"), *(("progress", "train", n, 20, "") for n in range(7)), ("line", "second")]
    assert cluster.collector.drain() == []
