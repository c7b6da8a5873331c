"""Budgets in a loop: all ranks look in the same iterations, checkpoints keep the pace, and training is the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from hooks import Budget, Hook, Rhythm, State, budget_control, paced_by
from hooks import plan as plan_module
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.stats.activation_stats import ActivationStats
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop import loop as loop_module
from orchestrator.loop import span_clock, stopping
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.stats.recorder import Recorder
from orchestrator.storage import Storage
from tests.device_stand_in import Device
from tests.ranks import on_ranks
from tests.tasks import Points, Rows, experiment, numbers
from tests.told_time import ToldTime

TIMED: tuple[Any, ...] = (plan_module, budget_control, span_clock, stopping)


def told() -> ToldTime:
    """One time for all that steers paces."""
    time = ToldTime()
    for module in TIMED:
        module.perf_counter = time
    return time


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> ToldTime:
    for module in TIMED:
        monkeypatch.setattr(module, "perf_counter", module.perf_counter)  # put back afterwards
    return told()


@dataclass
class Passes(Hook):
    """Lets time pass in each iteration."""

    seconds: float = 0.01

    def __post_init__(self) -> None:
        self.time = ToldTime()

    def on_loss(self, state: State) -> None:
        self.time.now += self.seconds


@dataclass
class Adds(Hook):
    """Adds numbers over ranks now and then, which takes each of them another time."""

    every: Rhythm = Rhythm(10, "steps")
    collective: ClassVar[bool] = True
    at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.time = ToldTime()

    @paced_by("every")
    def on_update(self, state: State) -> None:
        total = torch.ones(())
        if state.world_size > 1:
            dist.all_reduce(total)
        assert total == state.world_size
        self.at.append(state.step + 1)
        self.time.now += 0.005 * (1 + 9 * state.rank)


def adding(time: ToldTime, budget: str = "5%") -> dict[str, Any]:
    passes, adds = Passes(), Adds()
    passes.time = adds.time = time
    adds.budget = Budget.parse(budget)
    return {"passes": passes, "adds": adds}


def looks_of(rank: int, world_size: int) -> tuple[list[int], int]:
    time = told()
    hooks = adding(time)
    loop = Loop(
        Points(train=2 * 8 * 300, val=0), experiment(epochs=1), hooks, RunContext(world=World(rank, world_size))
    )
    list(loop.run())
    return hooks["adds"].at, loop.plan.budgets.all["adds"].every[True]


def test_all_ranks_look_in_the_same_iterations_at_the_pace_of_the_dearest() -> None:
    (first, every), (second, other) = on_ranks(looks_of)
    assert first == second == [64, 256]  # not at 128, which is too early after the first at the pace that it led to
    # 50 ms of rank 1 in steps of 10 ms: 111 steps at nine tenths of 5 %; 5 ms of rank 0 would be 12
    assert every == other == 128


def trained(folder: Path, time: ToldTime, budget: str, restore: str = "") -> tuple[Loop, dict[str, Any], Rows]:
    hooks = {**adding(time, budget), "checkpoint": Checkpoint(every=Rhythm(160, "steps"), keep=None)}
    rows = Rows()
    loop = Loop(
        Points(train=8 * 160, val=0),
        experiment(epochs=3),
        hooks,
        RunContext(store=CheckpointStore(Storage(folder)), recorder=rows),
    )
    if restore:
        loop.restore(restore)
    list(loop.run())
    return loop, hooks, rows


def test_a_resumed_run_goes_on_at_the_pace_and_training_is_the_same_at_any(tmp_path: Path, time: ToldTime) -> None:
    whole, hooks, rows = trained(tmp_path, time, "5%")
    every = whole.plan.budgets.all["adds"].every[True]
    assert every == 16
    assert [row["iteration"] for row in rows.rows if "adds_every" in row] == hooks["adds"].at
    assert whole.saving.store is not None
    assert whole.saving.store.manifest("epoch-0002")["paces"] == {"adds": [16, 0]}
    resumed, hooks, _ = trained(tmp_path, time, "5%", "epoch-0002")
    assert hooks["adds"].at[:3] == [336, 352, 368]
    sparse, *_ = trained(tmp_path / "other", time, "0.1%")
    assert numbers(whole.state.module) == numbers(resumed.state.module) == numbers(sparse.state.module)


def test_what_module_hooks_do_in_the_forward_pass_is_the_hook_s(tmp_path: Path, time: ToldTime) -> None:
    """activation_stats takes its time where the ledger sees nothing of it."""
    passes, stats = Passes(), ActivationStats()
    passes.time, stats.budget = time, Budget.parse("5%")
    original = stats._take

    def take(name: str, values: Any) -> None:
        time.now += 0.002
        original(name, values)

    stats._take = take  # type: ignore[method-assign]
    loop = Loop(
        Points(train=8 * 300, val=0),
        experiment(epochs=1),
        {"passes": passes, "stats": stats},
        RunContext(artifacts=tmp_path),
    )
    list(loop.run())
    layers = 4  # without the ReLU
    # 8 ms in steps of 10 ms: 17.8 steps at nine tenths of 5 %
    assert (layers * 0.002, stats.every) == (0.008, Rhythm(32, "steps"))


@dataclass
class Gives(Hook):
    """Gives the device work at a pace."""

    seconds: float
    every: Rhythm = Rhythm(1, "steps")

    def __post_init__(self) -> None:
        self.device = Device()

    @paced_by("every")
    def on_loss(self, state: State) -> None:
        self.device.work(self.seconds)
        if state.iteration % 10 == 0 and not self.budget:
            self.device.wait()


def test_steps_are_compared_in_the_time_of_the_device_by_events_that_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trains, looks = Gives(0.01), Gives(0.05)
    looks.budget, looks.device = Budget.parse("5%"), (device := trains.device)
    monkeypatch.setattr(torch.cuda, "Event", device.Event)
    monkeypatch.setattr(loop_module, "clock_for", lambda of: span_clock.CudaClock())
    for module in TIMED:
        monkeypatch.setattr(module, "perf_counter", device)
    recorder = Recorder(Storage(tmp_path), "stats/attempt=0/rank=0", {"rank": 0}, flush_rows=10)
    list(
        Loop(
            Points(train=8 * 600, val=0),
            experiment(epochs=1),
            {"trains": trains, "looks": looks},
            RunContext(recorder=recorder),
        ).run()
    )
    # 50 ms in steps of 10 ms: 111 steps at nine tenths of 5 %
    assert looks.every == Rhythm(128, "steps")
    assert device.events < 300
