import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from orchestrator.loop.world import World
from tests.ranks import on_ranks


def test_single_rank_needs_no_process_group() -> None:
    world = World()
    assert world.is_master
    assert world.gather("x") == ["x"]
    assert world.broadcast(lambda: 3) == 3
    assert world.maximum([1.0, 2.0]) == [1.0, 2.0]
    world.barrier()
    assert world.place == ""


def _talk(rank: int, world_size: int) -> dict[str, Any]:
    world = World(rank, world_size, rank)
    made: list[int] = []

    def make() -> str:
        made.append(rank)
        return f"from {rank}"

    together, apart = (
        World(rank, world_size, node="here"),
        World(rank, world_size, node=f"host{rank}"),
    )
    for placed in (together, apart):
        placed.number_on_nodes()
    return {
        "local ranks": (together.local_rank, apart.local_rank),
        "gathered": world.gather({"rank": rank}),
        "broadcast": world.broadcast(make),
        "made": made,
        "maximum": world.maximum([float(rank), -float(rank), 0.1]),
        "master": world.is_master,
        "place": world.place,
        "barrier": world.barrier(),
    }


def test_ranks_exchange_values() -> None:
    first, second = on_ranks(_talk)
    for answer in (first, second):
        assert answer["gathered"] == [{"rank": 0}, {"rank": 1}]
        assert answer["broadcast"] == "from 0"
        assert answer["maximum"] == [1.0, 0.0, 0.1]
    assert (first["local ranks"], second["local ranks"]) == ((0, 0), (1, 0))
    assert (first["made"], second["made"]) == ([0], [])
    assert (first["master"], second["master"]) == (True, False)
    assert (first["place"], second["place"]) == (" on rank 0", " on rank 1")


class Deaf(dist.ProcessGroup):
    """A backend that, like NCCL within a node, never notices a lost peer: a wait ends when it is
    aborted."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.aborted = threading.Event()

    def allreduce(self, tensors: list[torch.Tensor], options: object) -> dist.Work:
        return Unanswered(self.aborted)

    def abort(self) -> None:
        self.aborted.set()


class Unanswered(dist.Work):
    def __init__(self, aborted: threading.Event) -> None:
        super().__init__()
        self.aborted = aborted

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        assert self.aborted.wait(60)
        raise RuntimeError("aborted")


def test_abort_ends_a_collective_that_waits_forever() -> None:
    dist.Backend.register_backend(
        "deaf", lambda store, rank, size, timeout: Deaf(rank, size), devices=["cpu"]
    )
    dist.init_process_group("deaf", store=dist.HashStore(), rank=0, world_size=1)
    try:
        world, told = World(0, 2), []
        world.when_aborted.append(lambda: told.append(dist.group.WORLD.aborted.is_set()))
        threading.Timer(0.01, world.abort).start()
        with pytest.raises(RuntimeError, match="aborted"):
            dist.all_reduce(torch.ones(1))
        world.abort()
        assert told == [False]
    finally:
        dist.destroy_process_group()
