"""Ranks on GPUs: shards on one, and what needs two."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from hooks.stats.perf_stats import PerfStats
from hooks.training.gradient_clip import GradientClip
from orchestrator.loop.loop import Loop
from orchestrator.loop.strategy import sharded
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.raw import raw_training
from tests.tasks import Points, Rows, experiment, numbers

pytestmark = pytest.mark.gpu


@pytest.fixture
def one_rank(device: torch.device, tmp_path: Path) -> Iterator[World]:
    """A process group of this process alone."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield World(device=device)
    dist.destroy_process_group()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_sharded_over_one_rank_trains_as_it_does_whole(one_rank: World, precision: str) -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(one_rank.device)
    shards = sharded(copy.deepcopy(whole), [], one_rank, precision, skeleton=None)
    points, labels = torch.randn(16, 5, device=one_rank.device), torch.arange(16, device=one_rank.device) % 3
    for model in (whole, shards):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            functional.cross_entropy(model(points).float(), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    for name, value in shards.state_dict().items():
        within = {"rtol": 0, "atol": 0} if precision == "fp32" else {"rtol": 0.02, "atol": 0.02}
        torch.testing.assert_close(value.full_tensor(), whole.state_dict()[name], **within)


def _train(rank: int, world_size: int, use_cuda: bool, folder: str) -> tuple[dict[str, Any], list[float]]:
    """Under NCCL where there is CUDA, instead of the group that the helper has made."""
    device = torch.device("cuda", rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        dist.destroy_process_group()
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", init_method=f"file://{folder}/nccl", rank=rank, world_size=world_size)
    rows = Rows()
    hooks = {"perf_stats": PerfStats(), "clip": GradientClip(1e6)}
    loop = Loop(Points(), experiment(batch_size=4), hooks, world=World(rank, world_size, rank, device=device), recorder=rows)
    list(loop.run())
    waits = [row["all_reduce_wait_s"] for row in rows.rows if row["phase"] == "train"]
    return numbers(loop.state.module), [float(wait.resolve() if hasattr(wait, "resolve") else wait) for wait in waits]


def test_two_ranks_train_as_one_on_the_joint_batch_and_measure_their_wait(device: torch.device, tmp_path: Path) -> None:
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, and there is {torch.cuda.device_count()}")
    (weights, waits), _ = on_ranks(_train, 2, device.type == "cuda", str(tmp_path))
    assert all(wait >= 0 for wait in waits)
    assert sum(waits) > 0
    for name, value in raw_training(Points(), batch_size=8).state_dict().items():
        torch.testing.assert_close(torch.tensor(weights[name]), value, rtol=1e-4, atol=1e-5)
