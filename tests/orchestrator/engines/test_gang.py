"""A gang whose ranks fail or are lost, with Ray replaced: calls are answered in the order that a
test gives."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError

from orchestrator.engines import gang, rank_calls, rendezvous, run_gang
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.run_gang import RunGang, Spare
from orchestrator.engines.trial_gang import TrialGang
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.world import World

SECONDARY = RankFailed(0, 4, "RuntimeError: closed by peer", 1.0, True, False, "", None)
OWN = RankFailed(1, 4, "OSError: disk full", 2.0, False, False, "", None)
DIED = RankFailed.died(1, 4)


class FakeRay:
    """Stands in for Ray: each wait ends with the next answer, or without one. A call is the number
    of its rank."""

    def __init__(self, *order: tuple[int, Any] | None) -> None:
        self.order, self.answers = list(order), dict(filter(None, order))
        self.killed: list[str] = []

    def process(self, rank: int, bundle: int, name: str) -> Any:
        assign_rank = SimpleNamespace(remote=lambda rank: f"{name} becomes {rank}")
        actor = SimpleNamespace(
            next=SimpleNamespace(remote=lambda: Call(rank)),
            end=SimpleNamespace(remote=lambda: Call(rank)),
            assign_rank=assign_rank,
            name=name,
        )
        return gang.PlacedActor(actor, bundle)

    def wait(
        self, calls: list[Any], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Any], list[Any]]:
        if not self.order:  # a wait for survivors or new processes, after a failure
            return [call for call in calls if call in self.answers or isinstance(call, str)], []
        answer = self.order.pop(0)
        return ([answer[0]] if answer else []), calls

    def get(self, call: Any, timeout: float | None = None) -> Any:
        answer = self.answers.get(call)
        if isinstance(answer, RankFailed):
            gone = OutOfMemoryError("Ray's memory monitor") if call == 2 else RayActorError()
            raise gone if answer.message == DIED.message else gang.RayTaskError("next", "", answer)
        return answer

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.name)


class Call(int):
    """A call of a rank, which has failed already where a test asks for its future."""

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(
            OutOfMemoryError("") if self == 2 else gang.RayTaskError("next", "", OWN)
        )
        return future


def gang_of(
    monkeypatch: pytest.MonkeyPatch, ray: FakeRay, ranks: int = 2, spares: int = 0
) -> tuple[RunGang, list[str]]:
    """Return a gang in the middle of an attempt, and the lines that it shows."""
    lines: list[str] = []
    monkeypatch.setattr(gang, "ray", ray)
    monkeypatch.setattr(rank_calls, "ray", ray)
    monkeypatch.setattr(run_gang, "ray", ray)
    gang_ = RunGang(Workers(count=ranks, spares=spares), show_line=lines.append)
    gang_._actors = {rank: ray.process(rank, rank, f"old {rank}") for rank in range(ranks)}
    gang_._spares = [
        Spare(ray.process(-1, ranks + number, f"spare {number}")) for number in range(spares)
    ]
    monkeypatch.setattr(
        gang_, "_start_process", lambda rank, bundle: ray.process(rank, bundle, f"new {rank}")
    )
    return gang_, lines


def test_next_returns_the_report_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        gang_of(monkeypatch, FakeRay((1, "of rank 1"), (0, "of rank 0")))[0].next() == "of rank 0"
    )


@pytest.mark.parametrize(
    ("order", "culprit", "replaced"),
    [
        # A failure that a lost peer may have caused is raised only if no other rank says more in
        # time.
        ([(0, SECONDARY), (1, OWN)], OWN, [1]),
        ([(0, SECONDARY), (1, DIED)], DIED, [1]),
        ([(0, SECONDARY), None], SECONDARY, [1]),
        # A failure of a rank's own is raised immediately: the others may still wait for that rank.
        ([(1, OWN)], OWN, [0, 1]),
        ([(1, DIED)], DIED, [0, 1]),
        # Without a known cause it may be any rank.
        (
            [(0, SECONDARY), (1, RankFailed(1, 4, "closed", 2.0, True, False, "", None))],
            SECONDARY,
            [0, 1],
        ),
    ],
)
def test_first_failure_is_raised_and_survivors_keep_their_processes(
    monkeypatch: pytest.MonkeyPatch, order: list[Any], culprit: RankFailed, replaced: list[int]
) -> None:
    ray = FakeRay(*order)
    found, lines = gang_of(monkeypatch, ray)
    with pytest.raises(RankFailed) as raised:
        found.next()
    assert (raised.value.rank, raised.value.message) == (culprit.rank, culprit.message)
    assert ray.order == []
    assert found._failed_calls is not None
    found._replace_failed(found._failed_calls)
    assert ray.killed == [f"old {rank}" for rank in replaced]
    processes = "process of rank 1" if replaced == [1] else "processes of ranks 0, 1"
    assert lines == [f"replaced the {processes}; kept {2 - len(replaced)} of 2"]


def test_a_run_s_processes_end_although_a_rank_is_lost_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next attempt after a preemption would stay on the nodes that are taken away."""
    found, _ = gang_of(monkeypatch, FakeRay((0, None), (1, DIED)))
    group: Any = object()
    found._group = group
    removed: list[Any] = []
    monkeypatch.setattr(run_gang, "remove_placement_group", removed.append)
    with pytest.raises(RankFailed, match="rank 1"):
        found.end()
    assert removed == [group]
    assert (found._group, found._actors, found._failed_calls) == (None, {}, None)


def test_spares_replace_lost_ranks_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay((0, RankFailed.died(0, 4)))
    ray.answers |= {1: SECONDARY, 2: RankFailed.died(2, 4), "spare 0 becomes 0": DIED}
    found, lines = gang_of(monkeypatch, ray, ranks=4, spares=2)
    with pytest.raises(RankFailed):
        found.next()
    assert found._failed_calls is not None
    found._replace_failed(found._failed_calls)
    processes = {
        rank: (process.actor.name, process.bundle) for rank, process in found._actors.items()
    }
    assert processes == {0: ("spare 1", 5), 1: ("old 1", 1), 2: ("new 2", 2), 3: ("new 3", 3)}
    assert sorted(ray.killed) == ["old 0", "old 2", "old 3", "spare 0"], "rank 3 did not answer"
    assert lines == ["replaced the processes of ranks 0, 2, 3 (1 from spares); kept 1 of 4"]
    missing = set(range(6)) - {
        process.bundle
        for process in (*found._actors.values(), *(spare.process for spare in found._spares))
    }
    assert missing == {0, 4}, "for the next spares"


@pytest.mark.parametrize(("rank", "failure"), [(1, OWN), (2, RankFailed.died(2, 4))])
def test_rank_0_of_a_trial_is_freed_when_another_rank_fails(
    monkeypatch: pytest.MonkeyPatch, rank: int, failure: RankFailed
) -> None:
    """As with NCCL within a node, which notices nothing: only an abort from another thread frees
    rank 0."""
    aborted = threading.Event()

    def train() -> None:
        assert aborted.wait(60)
        raise ValueError("the loss is not a number")

    ray = FakeRay((rank, DIED if rank == 2 else OWN))
    ray.util = SimpleNamespace(get_node_ip_address=lambda: "localhost")  # type: ignore[attr-defined]
    monkeypatch.setattr(gang, "ray", ray)
    monkeypatch.setattr(rank_calls, "ray", ray)
    monkeypatch.setattr(rendezvous, "ray", ray)
    monkeypatch.setattr(TrialGang, "_start", lambda self: None)  # there is no placement group
    found = TrialGang(Workers(count=2))
    own_rank, world = found._own_rank, World()
    world.when_aborted.append(aborted.set)
    threading.Thread(
        target=own_rank._abort_on_failure, args=(found._server.begin_attempt(), world)
    ).start()
    monkeypatch.setattr(own_rank, "next", train)
    found._actors = {rank: ray.process(rank, rank, "other")}
    with pytest.raises(RankFailed) as raised:
        found.next()
    assert (raised.value.rank, raised.value.message) == (rank, failure.message)
