from typing import Any

import torch
from torch import nn

from hooks import Hook, Interval, State
from hooks.training.ema import EMA
from hooks.training.sync_buffers import SyncBuffers
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Points, experiment


class Buffered(nn.Module):
    """A BatchNorm whose buffers differ from rank to rank, and buffers of other types."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        assert self.norm.running_mean is not None
        assert self.norm.num_batches_tracked is not None
        self.norm.running_mean += rank
        self.norm.num_batches_tracked.fill_(10 + 5 * rank)
        self.register_buffer("wide", torch.tensor([0.25, 4.0 * rank], dtype=torch.float64))
        self.register_buffer("phase", torch.tensor([2 + 4j * rank]))
        self.register_buffer("mask", torch.tensor([rank == 0, True]))


def _buffers_after(rank: int, world_size: int, phase: str) -> dict[str, Any]:
    module = Buffered(rank)
    SyncBuffers().on_phase_end(State(module=module, rank=rank, world_size=world_size, phase=phase))
    return {name: buffer.tolist() for name, buffer in module.named_buffers()}


def test_float_and_complex_buffers_are_averaged_and_others_come_from_rank_0() -> None:
    for buffers in on_ranks(_buffers_after, 2, "train"):
        assert buffers == {
            "wide": [0.25, 2.0],
            "phase": [2 + 2j],
            "mask": [True, True],
            "norm.running_mean": [0.5, 0.5, 0.5],
            "norm.running_var": [1.0, 1.0, 1.0],
            "norm.num_batches_tracked": 10,  # MMEngine's mean of 10 and 15 would be 12
        }


def _constants_after(rank: int, world_size: int) -> list[bool]:
    """Return whether buffers with equal numbers on all ranks stay, for the hooks that average."""
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    module = nn.Module()
    module.register_buffer("exact", numbers)
    module.register_buffer("rounded", numbers.bfloat16())
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    state = State(module=module, rank=rank, world_size=world_size, phase="train")
    ema = EMA(buffers="ema")
    ema.on_update(state)
    SyncBuffers().on_phase_end(state)
    ema.on_phase_end(state)
    averages = ema.rank_state_dict()["buffers"]
    return [
        torch.equal(after[name], before[name].to(after[name]))
        for after in (dict(module.named_buffers()), averages)
        for name in before
    ]


def test_buffers_that_are_equal_on_all_ranks_stay_as_they_are() -> None:
    """A third of a number, added three times, is another number for one in seven."""
    assert on_ranks(_constants_after, 3) == [[True] * 4] * 3


def _unequal_buffers_after(rank: int, world_size: int) -> dict[str, Any]:
    module = nn.Module()
    names = ["a", "b"] if rank == 0 else ["b", "a"]
    for name in names:
        module.register_buffer(name, torch.full((2,), float(rank + (name == "b") * 10)))
    module.register_buffer("table", torch.arange(3.0 + rank))
    module.register_buffer("expanded", torch.full((1,), float(rank)).expand(2))
    if rank == 0:
        module.register_buffer("own", torch.ones(1))
    SyncBuffers().on_phase_end(
        State(module=module, rank=rank, world_size=world_size, phase="train")
    )
    return {name: buffer.tolist() for name, buffer in module.named_buffers()}


def test_buffers_that_differ_in_shape_stay_those_of_their_rank() -> None:
    """A forward pass may make tables for its own batches, in any order."""
    first, second = on_ranks(_unequal_buffers_after)
    equal = {"a": [0.5, 0.5], "b": [10.5, 10.5], "expanded": [0.5, 0.5]}
    assert first == {**equal, "table": [0.0, 1.0, 2.0], "own": [1.0]}
    assert second == {**equal, "table": [0.0, 1.0, 2.0, 3.0]}


class Means(Hook):
    """Notes the running means with which each validation begins."""

    def __init__(self) -> None:
        self.found: list[list[float]] = []

    def on_phase_start(self, state: State) -> None:
        if state.phase == "val":
            norm: Any = state.module.get_submodule("1")
            self.found.append(norm.running_mean.tolist())


def _validated_with(rank: int, world_size: int) -> list[list[float]]:
    """26 of 52 samples on each rank, in batches of 4: 7 steps, and validations after 3, 6 and 7."""
    means = Means()
    given = experiment(steps=7, batch_size=4, validate_every=Interval(3, "steps"))
    hooks: dict[str, Hook] = {"sync": SyncBuffers(), "means": means}
    list(
        Loop(
            Points(batch_norm=True), given, hooks, RunContext(world=World(rank, world_size, rank))
        ).run()
    )
    return means.found


def test_ranks_validate_with_equal_buffers_in_a_run_measured_in_steps() -> None:
    """MMEngine synchronizes once in such a run: its hook waits for an epoch to end."""
    first, second = on_ranks(_validated_with)
    assert first == second
    assert len({tuple(means) for means in first}) == 3
