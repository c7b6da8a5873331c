from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.config.sections.workers import Workers
from orchestrator.errors import RunError
from orchestrator.loop.loop import Loop
from orchestrator.loop.model import meta_device
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Blocks, Points, Rows, experiment


class Block(nn.Module):
    """Attention, whose weights another part gives some of their values, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, points: Tensor) -> Tensor:
        around = points[:, None]
        return points + self.norm(self.attention(around, around, around)[0][:, 0]) * self.scale


@dataclass
class Deep(Points):
    def model(self) -> nn.Module:
        return Blocks(Block)


@dataclass
class Otherwise(Points):
    """Other values for a layer, values of no layer, or a weight of two layers."""

    way: str = ""

    def model(self) -> nn.Module:
        model: Any = Blocks(Block)
        if self.way == "last.weight":
            nn.init.normal_(model.last.weight, std=0.02)
        elif self.way == "scale":
            model.scale = nn.Parameter(torch.ones(3))
        else:
            model.twice = nn.Linear(5, 8)
            model.twice.weight = model.first.weight
        return model


def run_loop(task: Points, world: World, meta: bool) -> tuple[Any, Any]:
    rows = Rows()
    workers = Workers(count=2, strategy="fsdp", meta_device=meta)
    loop = Loop(task, experiment(batch_size=4, steps=3, workers=workers), {}, RunContext(world=world, recorder=rows))
    weights = {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).tolist()
        for name, value in loop.state.module.state_dict().items()
    }
    list(loop.run())
    return weights, rows.columns("phase", "loss")


def _on_two(rank: int, world_size: int) -> dict[str, Any]:
    world, alive = World(rank, world_size, rank), []
    whole = run_loop(Deep(), world, False)
    with pytest.MonkeyPatch.context() as patch:
        sharded = meta_device._sharded

        def look(values: dict[Any, Tensor], *others: Any) -> Any:
            alive.append(sum(value.numel() for value in values.values()))
            return sharded(values, *others)

        patch.setattr(meta_device, "_sharded", look)
        in_parts = run_loop(Deep(), world, True)
    refused = {}
    for way in ("last.weight", "scale", "first.weight"):
        with pytest.raises(RunError) as raised:
            run_loop(Otherwise(way=way), world, True)
        refused[way] = str(raised.value)
    return {"whole": whole, "in parts": in_parts, "alive": max(alive), "refused": refused}


def test_a_model_that_no_rank_builds_whole_has_the_weights_of_one_that_each_does_bit_for_bit() -> None:
    for found in on_ranks(_on_two):
        assert found["in parts"] == found["whole"]
        assert found["alive"] == sum(one.numel() for one in Block().parameters())
        for name, message in found["refused"].items():
            assert f"1 of the model's parameters ({name})" in message
