"""LBFGS and SAM in the hooked loop are the handwritten loop, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS

from hooks import Hook, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.stats.perf_stats import PerfStats
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.experiment.optim.component import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.randomness import seed_all
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.sam import SharpSGD
from tests.tasks import Points, Rows, Seen, experiment, numbers

ARGUMENTS: list[dict[str, Any]] = [
    {"lr": 0.5, "max_iter": 4},
    {"lr": 1.0, "max_iter": 6, "line_search_fn": "strong_wolfe"},
]


def made(task: Points, world: World, **fields: Any) -> tuple[Loop, Rows, Seen]:
    rows = Rows()
    seen = Seen()
    hooks: dict[str, Hook] = {"seen": seen, "perf_stats": PerfStats(), **fields.pop("hooks", {})}
    context = RunContext(world, rows, fields.pop("store", None))
    return Loop(task, experiment(batch_size=6, **fields), hooks, context), rows, seen


def raw(
    task: Points, batches: list[list[int]], world: World, arguments: dict[str, Any]
) -> dict[str, Any]:
    seed_all(0)
    module = task.model()
    model: nn.Module = (
        DistributedDataParallel(module, forward_sync_buffers=False)
        if world.world_size > 1
        else module
    )
    seed_all(world.rank)
    optimizer = LBFGS(module.parameters(), **arguments)
    losses = []
    counts = []
    data = task.data()["train"]
    for indices in batches:
        points, labels, _ = torch.utils.data.default_collate([data[index] for index in indices])
        evaluated: list[float] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points), labels)  # noqa: B023
            loss.backward()
            evaluated.append(loss.item())  # noqa: B023
            if world.world_size > 1:
                loss = loss.detach() / world.world_size
                torch.distributed.all_reduce(loss)
            return loss

        optimizer.step(closure)
        losses.append(evaluated[0])
        counts.append(len(evaluated))
    return {"weights": numbers(module), "loss": losses, "evaluations": counts}


def trained(rank: int, world_size: int, arguments: dict[str, Any]) -> None:
    world = World(rank, world_size, rank)
    task = Points(train=24, val=0, dropout=0.3, batch_norm=True)
    optimizer = Component(type="LBFGS", **arguments)
    loop, rows, seen = made(task, world, optimizer=optimizer)
    list(loop.run())
    expected = raw(task, seen.indices, world, arguments)
    assert numbers(loop.state.module) == expected["weights"]
    assert [row["loss"] for row in rows.rows] == expected["loss"]
    assert [row["evaluations"] for row in rows.rows] == expected["evaluations"]
    assert max(expected["evaluations"]) > 1
    assert {row["lr"] for row in rows.rows} == {arguments["lr"]}


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=["plain", "strong_wolfe"])
def test_one_rank_trains_as_a_handwritten_loop(arguments: dict[str, Any]) -> None:
    trained(0, 1, arguments)


def trained_in_all_ways(rank: int, world_size: int) -> None:
    for arguments in ARGUMENTS:
        trained(rank, world_size, arguments)


def test_two_ranks_train_as_a_handwritten_loop() -> None:
    on_ranks(trained_in_all_ways)


# SAM

SHARP = Component(type="tests.sam:SharpSGD", lr=0.1, rho=0.1)


def raw_sam(task: Points, batches: list[list[int]], world: World) -> dict[str, Any]:
    """The loop of its README: gradients first, then a step with a closure."""
    seed_all(0)
    module = task.model()
    model: nn.Module = (
        DistributedDataParallel(module, forward_sync_buffers=False)
        if world.world_size > 1
        else module
    )
    seed_all(world.rank)
    optimizer = SharpSGD(module.parameters(), lr=0.1, rho=0.1)
    data = task.data()["train"]
    losses = []
    for indices in batches:
        points, labels, _ = torch.utils.data.default_collate([data[index] for index in indices])

        def closure() -> Tensor:
            loss = nn.functional.cross_entropy(model(points), labels)  # noqa: B023
            loss.backward()
            return loss

        loss = closure()
        optimizer.step(closure)
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"weights": numbers(module), "loss": losses}


def sharpened(rank: int, world_size: int) -> None:
    world = World(rank, world_size, rank)
    task = Points(train=24, val=0, dropout=0.3, batch_norm=True)
    loop, rows, seen = made(task, world, optimizer=SHARP)
    list(loop.run())
    expected = raw_sam(task, seen.indices, world)
    assert numbers(loop.state.module) == expected["weights"]
    assert [row["loss"] for row in rows.rows] == expected["loss"]
    assert {row["evaluations"] for row in rows.rows} == {2}


def test_sam_trains_as_a_handwritten_loop() -> None:
    sharpened(0, 1)


def test_sam_on_two_ranks_trains_as_a_handwritten_loop() -> None:
    on_ranks(sharpened)


def test_sam_resumes_bit_for_bit(tmp_path: Path) -> None:
    task = Points(train=24, val=0, dropout=0.3)
    runs = []
    for restored in (None, "step-00000003"):
        hooks = {"checkpoint": Checkpoint(every=Interval(3, "steps"), keep=None)}
        loop, rows, _ = made(
            task, World(), optimizer=SHARP, hooks=hooks, store=CheckpointStore(Storage(tmp_path))
        )
        if restored:
            loop.restore(restored)
        list(loop.run())
        runs.append((numbers(loop.state.module), [row["loss"] for row in rows.rows]))
    (weights, losses), (resumed_weights, resumed_losses) = runs
    assert resumed_weights == weights
    assert resumed_losses == losses[3:]


def test_skipped_step_of_sam_moves_no_weight() -> None:
    task = Points(train=18, val=0)
    events = Events(skips=1)
    loop, rows, seen = made(task, World(), optimizer=SHARP, epochs=1, hooks={"events": events})
    list(loop.run())
    assert [row["step"] for row in rows.rows] == [1, 1, 2]
    assert numbers(loop.state.module) == raw_sam(task, seen.indices[::2], World())["weights"]


class Events(Hook):
    def __init__(self, skips: int = -1) -> None:
        self.fired = list[str]()
        self.skips = skips
        for event in ("on_batch", "on_forward", "on_loss", "on_backward", "on_update", "on_step"):
            setattr(self, event, lambda state, event=event: self.fired.append(event))

    def on_gradients(self, state: State) -> None:
        self.fired.append("on_gradients")
        if state.step == self.skips:
            state.skip_update("test")
            self.skips = -1

    def handles(self, event: str) -> bool:
        return event in (
            "on_batch",
            "on_forward",
            "on_loss",
            "on_backward",
            "on_gradients",
            "on_update",
            "on_step",
        )


def test_first_step_can_be_skipped() -> None:
    optimizer = Component(type="LBFGS", **ARGUMENTS[0])
    hooks = {"events": Events(skips=0)}
    loop, rows, _ = made(
        Points(train=18, val=0), World(), optimizer=optimizer, epochs=1, hooks=hooks
    )
    list(loop.run())
    assert [row["step"] for row in rows.rows] == [0, 1, 2]


def test_events_fire_once_in_a_step_and_a_skipped_step_changes_nothing() -> None:
    task = Points(train=18, val=0)
    events = Events(skips=1)
    optimizer = Component(type="LBFGS", **ARGUMENTS[0])
    loop, rows, seen = made(task, World(), optimizer=optimizer, epochs=1, hooks={"events": events})
    list(loop.run())
    whole = [
        "on_batch",
        "on_forward",
        "on_loss",
        "on_backward",
        "on_gradients",
        "on_update",
        "on_step",
    ]
    assert events.fired == [*whole, *(event for event in whole if event != "on_update"), *whole]
    assert [row["step"] for row in rows.rows] == [1, 1, 2]
    assert (
        numbers(loop.state.module) == raw(task, seen.indices[::2], World(), ARGUMENTS[0])["weights"]
    )
