"""What counts whole-number paces: the run's iterations, however short its epochs are and however often it is
resumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hooks import HOOKS, Hook, Interval, State, paced_by
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.hook import WITHIN_ITERATION
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.stats.write.recorder import Recorder
from orchestrator.storage import Storage
from tests.tasks import Points, Rows, experiment

TASK = Points(train=52, val=23, test=23)  # 7, 3 and 3 iterations of 8 samples


@dataclass
class Paced(Hook):
    """Notes where it is called: the phase, the epochs that are over, the iteration in the phase."""

    every: int | Interval = 5
    before: list[tuple[str, int, int]] = field(default_factory=list)
    after: list[tuple[str, int, int]] = field(default_factory=list)

    @paced_by("every")
    def on_forward(self, state: State) -> None:
        self.before.append((state.phase, state.epoch, state.phase_iteration + 1))

    @paced_by("every")
    def on_step(self, state: State) -> None:
        self.after.append((state.phase, state.epoch, state.phase_iteration))


def test_iterations_of_the_run_are_counted_each_phases_apart() -> None:
    hook = Paced()
    list(Loop(TASK, experiment(epochs=4), {"paced": hook}).run())
    # of 28 training iterations the 5th, 10th ...; of 12 in validation the 5th and the 10th; the test has 3
    assert [place for place in hook.after if place[0] == "train"] == [
        ("train", n // 7, n % 7 or 7) for n in (5, 10, 15, 20, 25)
    ]
    assert [place for place in hook.after if place[0] != "train"] == [("val", 2, 2), ("val", 4, 1)]
    assert hook.before == hook.after


@pytest.mark.parametrize(
    "fields", [{}, {"validate_every": Interval(4, "steps")}, {"accumulate": 2}], ids=["epochs", "steps", "accumulation"]
)
def test_a_resumed_run_keeps_the_pace(tmp_path: Path, fields: dict[str, Interval | int]) -> None:
    def live(restore: str = "") -> tuple[list[tuple[str, int, int]], Loop]:
        hooks = {"paced": Paced(), "checkpoint": Checkpoint(every=Interval(3, "steps"), keep=None)}
        loop = Loop(TASK, experiment(epochs=4, **fields), hooks, RunContext(store=CheckpointStore(Storage(tmp_path))))
        if restore:
            loop.restore(restore)
        list(loop.run())
        return hooks["paced"].after, loop  # type: ignore[attr-defined]

    whole, loop = live()
    assert loop.saving.store is not None
    for name in loop.saving.store.names():
        resumed, _ = live(name)
        assert resumed == whole[len(whole) - len(resumed) :]
        done = loop.saving.store.position(name).iteration
        assert len([place for place in resumed if place[0] == "train"]) == 28 // 5 - done // 5


PACED = sorted(
    {
        (name, paced)
        for name, hook in HOOKS.items()
        for event in WITHIN_ITERATION
        if (paced := getattr(getattr(hook, event), "paced_by", ""))
        and getattr(getattr(hook, paced), "unit", "") == "iterations"
    }
)


def test_the_hooks_that_ship_with_whole_paces() -> None:
    assert {name for name, _ in PACED} >= {
        "console",
        "device_stats",
        "empty_cache",
        "memory_stats",
        "throughput",
    }


class Costs(Recorder):
    """Keeps what hooks cost."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: list[dict[str, Any]] = []

    def append_costs(self, costs: list[dict[str, Any]]) -> None:
        self.costs += costs


@pytest.mark.parametrize(("name", "paced"), PACED)
def test_a_hook_that_ships_acts_in_epochs_shorter_than_its_pace(tmp_path: Path, name: str, paced: str) -> None:
    hook = HOOKS[name](**{paced: Interval(10, "iterations")}, **({"after_iter": True} if name == "empty_cache" else {}))
    costs = Costs()
    list(Loop(Points(val=0), experiment(epochs=6), {name: hook}, RunContext(artifacts=tmp_path, recorder=costs)).run())
    # 42 iterations, in epochs of 7
    assert sum(cost["calls"] for cost in costs.costs if cost["event"] == "on_step") == 4


def test_a_machine_is_measured_in_a_run_of_short_epochs() -> None:
    rows = Rows()
    list(
        Loop(
            Points(val=0), experiment(epochs=8), {"device_stats": HOOKS["device_stats"]()}, RunContext(recorder=rows)
        ).run()
    )
    assert [row["iteration"] for row in rows.rows if "rss_bytes" in row] == [50]
