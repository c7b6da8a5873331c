"""What becomes of a gang of which ranks fail or are lost, with Ray left out: calls are answered in the order a test
says."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from orchestrator.config.sections.workers import Workers
from orchestrator.engines import gang
from orchestrator.engines.gang import Gang, Member
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.loop.world import World

ECHO = RankFailed(0, "RuntimeError: closed by peer", at=1.0, is_possible_echo=True, mistake=False)
OWN = RankFailed(1, "OSError: disk full", at=2.0, is_possible_echo=False, mistake=False)
DIED = RankFailed.died(1)


class Answers:
    """Stands in for Ray: each wait is over with the next answer, or without one."""

    def __init__(self, *order: tuple[int, Any] | None) -> None:
        self.order, self.given, self.freed = list(order), dict(filter(None, order)), 0

    def member(self, rank: int) -> Any:
        return SimpleNamespace(next=SimpleNamespace(remote=lambda: rank))

    def wait(self, calls: list[int], timeout: float | None) -> tuple[list[int], list[int]]:
        answer = self.order.pop(0)
        return ([answer[0]] if answer else []), calls

    def get(self, call: int) -> Any:
        answer = self.given[call]
        if isinstance(answer, RankFailed):
            raise RayActorError if answer is DIED else gang.RayTaskError("next", "", answer)
        return answer


def gang_of(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> Gang:
    def free(group: object) -> None:
        answers.freed += 1

    monkeypatch.setattr(gang, "ray", answers)
    monkeypatch.setattr(gang, "remove_placement_group", free)
    found = Gang(Workers(count=2), in_trial=False)
    monkeypatch.setattr(found, "_group", object())
    monkeypatch.setattr(found, "_others", {rank: answers.member(rank) for rank in (0, 1)})
    return found


def test_the_report_is_rank_0s_once_all_have_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers((1, "theirs"), (0, "mine"))
    assert gang_of(monkeypatch, answers).next() == "mine"
    assert answers.freed == 0


@pytest.mark.parametrize(
    ("order", "culprit"),
    [
        # What may be the echo of a lost peer is told as that only where no other rank says more in time.
        ([(0, ECHO), (1, OWN)], OWN),
        ([(0, ECHO), (1, DIED)], DIED),
        ([(0, ECHO), None], ECHO),
        # A failure of a rank's own is told at once: the others may still wait for that rank.
        ([(1, OWN)], OWN),
        ([(1, DIED)], DIED),
    ],
)
def test_whose_failure_it_was_is_told_and_the_places_are_given_back(
    monkeypatch: pytest.MonkeyPatch, order: list[Any], culprit: RankFailed
) -> None:
    answers = Answers(*order)
    with pytest.raises(RankFailed) as raised:
        gang_of(monkeypatch, answers).next()
    assert (raised.value.rank, raised.value.words) == (culprit.rank, culprit.words)
    assert answers.order == []
    assert answers.freed == 1


class Call(int):
    """A call of a rank's, by its number, that has failed already."""

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(RayActorError() if self == 2 else gang.RayTaskError("next", "", OWN))
        return future


@pytest.mark.parametrize(("rank", "failure"), [(1, OWN), (2, RankFailed.died(2))])
def test_rank_0_waits_no_more_for_a_rank_that_has_failed_though_its_device_does(
    monkeypatch: pytest.MonkeyPatch, rank: int, failure: RankFailed
) -> None:
    """As under NCCL within a node, which notices nothing: only what is ended from beside lets rank 0 go on, with an
    error of its own or none."""
    aborted = threading.Event()

    def train() -> None:
        assert aborted.wait(60)
        raise ValueError("the loss is not a number")

    answers = Answers((rank, DIED if rank == 2 else OWN))
    found = gang_of(monkeypatch, answers)
    here = Member.__new__(Member)
    here.lost_peer, here._world = False, World()
    here._world.when_aborted.append(aborted.set)
    monkeypatch.setattr(here, "next", train, raising=False)
    monkeypatch.setattr(found, "_here", here)
    monkeypatch.setattr(found, "_others", {rank: answers.member(Call(rank))})
    with pytest.raises(RankFailed) as raised:
        found.next()
    assert (raised.value.rank, raised.value.words) == (rank, failure.words)
