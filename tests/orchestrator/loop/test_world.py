from __future__ import annotations

from typing import Any

from orchestrator.loop.world import World
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
