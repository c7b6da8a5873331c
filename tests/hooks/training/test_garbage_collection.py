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
    """Whether Python collects by itself before the run."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """The tests themselves freeze what they have imported."""
    gc.unfreeze()
    yield
    gc.freeze()


class Cycle:
    """An object that only a collection can delete."""

    def __init__(self) -> None:
        self.me = self


class DropsCycles(Hook):
    """Drops a cycle in each training iteration, and counts those that no collection has deleted."""

    priority = 0

    def __init__(self) -> None:
        self.dropped: list[weakref.ref[Cycle]] = []
        self.left: list[int] = []

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.left.append(sum(cycle() is not None for cycle in self.dropped))
            self.dropped.append(weakref.ref(Cycle()))


class MakesObjects(Hook):
    """Makes more objects in each iteration than Python allows without a collection."""

    def on_batch(self, state: State) -> None:
        self.objects: list[list[int]] = [[] for _ in range(5000)]


def test_garbage_is_collected_every_few_iterations_and_not_in_between() -> None:
    cycles = DropsCycles()
    hooks = {"gc": GarbageCollection(every=Interval(3, "iterations")), "cycles": cycles}

    list(Loop(Points(train=56), experiment(epochs=1, batch_size=8), hooks).run())

    assert cycles.left == [0, 1, 2, 0, 1, 2, 0]


def test_the_setting_is_restored_after_a_run_and_after_a_failure(enabled: bool) -> None:
    list(Loop(Points(), experiment(epochs=1), {"gc": GarbageCollection()}).run())
    assert gc.isenabled() is enabled

    with pytest.raises(HookError, match="broken on purpose"):
        list(Loop(Points(), experiment(), {"gc": GarbageCollection(), "breaks": Breaks()}).run())
    assert gc.isenabled() is enabled


def test_objects_are_frozen_during_the_run(unfrozen: None) -> None:
    before = gc.get_freeze_count()
    hook = GarbageCollection()

    hook.on_start(State())
    during = gc.get_freeze_count()
    hook.on_end(State())

    assert during > 10_000 + before
    assert gc.get_freeze_count() <= before


def _list_collections(rank: int, world_size: int) -> list[int]:
    """Return the iterations in which this rank collected; rank 1 makes more objects."""
    collections: list[int] = []
    hooks: dict[str, Hook] = {"gc": GarbageCollection(every=Interval(4, "iterations"))}
    if rank == 1:
        hooks["objects"] = MakesObjects()
    context = RunContext(world=World(rank, world_size, rank))
    loop = Loop(Points(train=80, val=0), experiment(batch_size=4, epochs=1), hooks, context)

    def note(moment: str, info: dict[str, Any]) -> None:
        if moment == "start" and not gc.isenabled():
            collections.append(loop.state.iteration)

    gc.callbacks.append(note)
    list(loop.run())
    gc.callbacks.remove(note)
    return collections


def test_all_ranks_collect_in_the_same_iterations() -> None:
    assert on_ranks(_list_collections) == [[0, 4, 8]] * 2
