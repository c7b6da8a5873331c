from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from hooks import Hook, HookError, State
from hooks.interval import Interval
from hooks.training.garbage_collection import GarbageCollection
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Breaks, Points, experiment


@pytest.fixture(params=[True, False], ids=["automatic", "switched off before"])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


class Cycle:
    def __init__(self) -> None:
        self.me = self


class Litter(Hook):
    """Drops a cycle of objects at each iteration and notes how many of them are left, and whether collection is on."""

    priority = 0

    def __init__(self) -> None:
        self.dropped: list[weakref.ref[Cycle]] = []
        self.left: list[tuple[str, int]] = []
        self.automatic = False

    def on_batch(self, state: State) -> None:
        self.automatic |= gc.isenabled()
        self.left.append((state.phase, sum(cycle() is not None for cycle in self.dropped)))
        self.dropped.append(weakref.ref(Cycle()))


def test_cycles_go_every_so_many_iterations_of_a_phase_and_not_before() -> None:
    litter = Litter()
    list(
        Loop(
            Points(), experiment(epochs=1), {"gc": GarbageCollection(every=Interval(3, "iterations")), "litter": litter}
        ).run()
    )
    # 52 and 23 samples in batches of 8: 7 and 3 iterations
    train = [("train", left) for left in (0, 1, 2, 0, 1, 2, 0)]
    assert litter.left == [*train, ("val", 1), ("val", 2), ("val", 3)]
    assert litter.automatic is False
    assert not any(cycle() for cycle in litter.dropped)  # the third of val was collected, too


def test_what_was_found_is_put_back(enabled: bool) -> None:
    list(Loop(Points(), experiment(epochs=1), {"gc": GarbageCollection()}).run())
    assert gc.isenabled() is enabled
    with pytest.raises(HookError, match="broken on purpose"):
        list(Loop(Points(), experiment(), {"gc": GarbageCollection(), "breaks": Breaks()}).run())
    assert gc.isenabled() is enabled


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_there_at_the_start_is_frozen_unless_somebody_else_froze(frozen: bool) -> None:
    hook, state = GarbageCollection(), State()
    if frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    hook.on_start(state)
    during = gc.get_freeze_count()
    hook.on_end(state)
    after = gc.get_freeze_count()
    gc.unfreeze()
    assert (before > 0, after > 0) == (frozen, frozen)
    assert during > 10_000


class Makes(Hook):
    """Makes more objects than Python lets pass without a collection of its own."""

    def on_batch(self, state: State) -> None:
        self.objects: list[list[int]] = [[] for _ in range(5000)]


def _collections(rank: int, world_size: int) -> Any:
    """The iterations in which this rank collected."""
    seen: list[tuple[str, int]] = []
    hooks = {"gc": GarbageCollection(every=Interval(4, "iterations")), **({"makes": Makes()} if rank == 1 else {})}
    world = World(rank, world_size, rank)
    loop = Loop(Points(train=70, val=0), experiment(batch_size=4, epochs=1), hooks, RunContext(world=world))

    def note(moment: str, info: dict[str, int]) -> None:
        if moment == "start" and not gc.isenabled():
            seen.append((loop.state.phase, loop.state.phase_iteration))

    gc.callbacks.append(note)
    list(loop.run())
    gc.callbacks.remove(note)
    return seen


def test_ranks_collect_in_the_same_iterations() -> None:
    # 35 samples on each rank in batches of 4 are 9 iterations
    assert on_ranks(_collections) == [[("", 0), ("train", 4), ("train", 8)]] * 2
