from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.loop import world as world_module
from orchestrator.loop.clock import Clock
from orchestrator.loop.world import Agreement, World
from tests.ranks import on_ranks


def test_a_rank_alone_agrees_with_itself_without_a_process_group() -> None:
    world = World()
    assert world.is_master
    assert world.gather("x") == ["x"]
    assert world.broadcast(lambda: 3) == 3
    assert world.maximum([1.0, 2.0]) == [1.0, 2.0]
    world.barrier()


def _talk(rank: int, world_size: int) -> dict[str, Any]:
    world = World(rank, world_size, rank)
    made: list[int] = []

    def make() -> str:
        made.append(rank)
        return f"from {rank}"

    together, apart = World(rank, world_size, node="here"), World(rank, world_size, node=f"host{rank}")
    for placed in (together, apart):
        placed.number_on_nodes()
    return {
        "local ranks": (together.local_rank, apart.local_rank),
        "gathered": world.gather({"rank": rank}),
        "broadcast": world.broadcast(make),
        "made": made,
        "maximum": world.maximum([float(rank), -float(rank), 0.1]),
        "master": world.is_master,
        "barrier": world.barrier(),
    }


def test_ranks_hear_each_other() -> None:
    first, second = on_ranks(_talk)
    for answer in (first, second):
        assert answer["gathered"] == [{"rank": 0}, {"rank": 1}]
        assert answer["broadcast"] == "from 0"
        assert answer["maximum"] == [1.0, 0.0, 0.1]
    assert (first["local ranks"], second["local ranks"]) == ((0, 0), (1, 0))
    assert (first["made"], second["made"]) == ([0], [])
    assert (first["master"], second["master"]) == (True, False)


class Two:
    """A world of two whose other rank gives fixed answers; counts how often it is asked."""

    world_size = 2

    def __init__(self, asked: bool = False, iteration_s: float = 0.0) -> None:
        self.other = [float(asked), iteration_s]
        self.calls = 0

    def maximum(self, values: list[float]) -> list[float]:
        self.calls += 1
        return [max(pair) for pair in zip(values, self.other, strict=True)]


def agreement_of(world: Two, iteration_s: float = 1.0) -> Agreement:
    """With a clock whose last iteration took so long."""
    clock = Clock()
    clock.iteration_s = iteration_s
    return Agreement(cast(World, world), clock)


def asked_at(world: Two, iterations: int, iteration_s: float) -> list[int]:
    """The iterations at which the ranks ask each other."""
    agreement, found = agreement_of(world, iteration_s), []
    for iteration in range(1, iterations + 1):
        before = world.calls
        agreement.reached(iteration, False)
        if world.calls > before:
            found.append(iteration)
    return found


def test_ranks_ask_each_other_about_every_quarter_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "CHECK_EVERY_S", 0.25)
    assert asked_at(Two(), 12, 0.05) == [1, 6, 11]
    # the slowest rank sets the pace, so that all choose the same iterations
    assert asked_at(Two(iteration_s=0.125), 6, 0.05) == [1, 3, 5]
    assert asked_at(Two(), 3, 10.0) == [1, 2, 3]
    assert asked_at(Two(), 1500, 1e-9) == [1, 1001]


def test_what_another_rank_was_asked_is_heard() -> None:
    assert agreement_of(Two(asked=True)).reached(1, False)
    assert not agreement_of(Two()).reached(1, False)


def test_a_rank_alone_hears_at_once() -> None:
    clock = Clock()
    agreement = Agreement(World(), clock)
    assert not agreement.reached(1, False)
    assert agreement.reached(2, True)
    assert clock.waiting_s == 0


def test_what_a_rank_waits_for_the_answer_is_told_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank answers after three seconds, each of the two times it is asked."""
    now = iter([100.0, 103.0, 200.0, 203.0])
    monkeypatch.setattr(world_module, "perf_counter", lambda: next(now))
    clock = Clock()
    clock.iteration_s = 0.25
    agreement = Agreement(cast(World, Two()), clock)
    assert [agreement.reached(iteration, False) for iteration in (1, 2)] == [False, False]
    assert clock.waiting_s == 6.0
