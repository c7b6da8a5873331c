from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hooks import Hook, State
from hooks.training.ema import EMA
from hooks.training.gradient_clip import GradientClip
from hooks.training.nan_guard import NanGuard
from hooks.training.sync_buffers import SyncBuffers
from orchestrator import Task
from orchestrator.config.experiment import Component, Workers
from orchestrator.loop.loop import Loop
from orchestrator.loop.strategy import is_sharded
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Points, Rows, experiment, numbers

def make_hooks() -> dict[str, Hook]:
    return {
        "nan_guard": NanGuard(),
        "gradient_clip": GradientClip(max_norm=0.5),
        "ema": EMA(decay=0.9, evaluate="both"),
        "sync_buffers": SyncBuffers(),
    }


def losses(strategy: str, world: World, hooks: dict[str, Hook], **fields: Any) -> dict[str, Any]:
    rows = Rows()
    written = {"steps": 50, "batch_size": 4, "workers": Workers(strategy=strategy), **fields}
    # 23 samples of val are uneven on 2 and on 4 ranks, also in batches of 4
    loop = Loop(Points(train=64, batch_norm=True), experiment(**written), hooks, world=world, recorder=rows)
    reports = [report.metrics for report in loop.run()]
    parameter = next(loop.state.module.parameters())
    return {
        "sharded": is_sharded(loop.state.module),
        "shard": parameter.to_local().shape[0] if hasattr(parameter, "to_local") else parameter.shape[0],
        "loss": [loss for (loss,) in rows.columns("loss", phase="train")],
        "norm": [float(row["grad_norm"]) for row in rows.rows if "grad_norm" in row],
        "reports": reports,
    }


def _both(rank: int, world_size: int) -> list[dict[str, Any]]:
    world = World(rank, world_size, rank)
    return [losses(s, world, make_hooks(), **f) for f in ({}, {"accumulate": 2, "steps": 10}) for s in ("ddp", "fsdp")]


@pytest.mark.parametrize("world_size", [2, 4])
def test_sharded_ranks_train_as_replicas_do(world_size: int) -> None:
    for ddp, fsdp, ddp_2, fsdp_2 in on_ranks(_both, world_size):
        assert (ddp["sharded"], fsdp["sharded"]) == (False, True)
        assert (ddp["shard"], fsdp["shard"]) == (8, 8 // world_size)
        for expected, found in ((ddp, fsdp), (ddp_2, fsdp_2)):
            assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
            assert found["norm"] == pytest.approx(expected["norm"], abs=1e-4)
            for one, other in zip(expected["reports"], found["reports"], strict=True):
                assert other == pytest.approx(one, abs=1e-5)
        assert len(ddp["loss"]) == 50
