"""Ranks on GPUs: shards on one, and what needs two."""

import copy
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from hooks import Hook, State
from hooks.stats.perf_stats import PerfStats
from hooks.training.gradient_clip import GradientClip
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.loop import base_loop
from orchestrator.loop.loop import Loop
from orchestrator.loop.model.strategy import shard
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.gpu.tasks import loop_on
from tests.ranks import on_ranks, until_killed
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
def test_a_model_sharded_over_one_rank_trains_as_it_does_whole(
    one_rank: World, precision: str
) -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(one_rank.device)
    shards = shard(copy.deepcopy(whole), [], one_rank, precision)
    points, labels = (
        torch.randn(16, 5, device=one_rank.device),
        torch.arange(16, device=one_rank.device) % 3,
    )
    for model in (whole, shards):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            functional.cross_entropy(model(points).float(), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    for name, value in shards.state_dict().items():
        within = {"rtol": 0, "atol": 0} if precision == "fp32" else {"rtol": 0.02, "atol": 0.02}
        torch.testing.assert_close(value.full_tensor(), whole.state_dict()[name], **within)


def _train(
    rank: int, world_size: int, use_cuda: bool, folder: str
) -> tuple[dict[str, Any], list[float]]:
    """Under NCCL where there is CUDA, instead of the group that the helper has made."""
    device = torch.device("cuda", rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        dist.destroy_process_group()
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl", init_method=f"file://{folder}/nccl", rank=rank, world_size=world_size
        )
    rows = Rows()
    hooks = {"perf_stats": PerfStats(), "clip": GradientClip(1e6)}
    loop = Loop(
        Points(),
        experiment(batch_size=4),
        hooks,
        RunContext(world=World(rank, world_size, rank, device=device), recorder=rows),
    )
    list(loop.run())
    waits = [row["all_reduce_wait_s"] for row in rows.rows if row["phase"] == "train"]
    return numbers(loop.state.module), [
        float(wait.resolve() if hasattr(wait, "resolve") else wait) for wait in waits
    ]


def test_two_ranks_train_as_one_on_the_joint_batch_and_measure_their_wait(
    device: torch.device, tmp_path: Path
) -> None:
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, and there is {torch.cuda.device_count()}")
    (weights, waits), _ = on_ranks(_train, 2, device.type == "cuda", str(tmp_path))
    assert all(wait >= 0 for wait in waits)
    assert sum(waits) > 0
    for name, value in raw_training(Points(), batch_size=8).state_dict().items():
        torch.testing.assert_close(torch.tensor(weights[name]), value, rtol=1e-4, atol=1e-5)


def _wait_for_a_rank_that_is_gone(rank: int, world_size: int, folder: str) -> None:
    device = torch.device("cuda", rank)
    dist.destroy_process_group()
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/nccl", rank=rank, world_size=world_size
    )
    world, total = World(rank, world_size, rank, device=device), torch.ones(1, device=device)
    dist.all_reduce(total)
    torch.cuda.synchronize()
    if rank == 1:
        os._exit(0)
    dist.all_reduce(total)
    threading.Timer(2, world.abort).start()
    with suppress(RuntimeError):
        total.item()
    os._exit(0)


def test_rank_stops_waiting_for_a_lost_peer_once_it_is_aborted(
    cuda: torch.device, tmp_path: Path
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, and there is {torch.cuda.device_count()}")
    assert until_killed(_wait_for_a_rank_that_is_gone, 2, str(tmp_path)) == [0, 0]


class Fails(Hook):
    """Gives the device seconds of work in the third iteration, and fails in the fifth."""

    def on_step(self, state: State) -> None:
        if state.iteration == 3:
            big = torch.ones(8192, 8192, device=state.device)
            for _ in range(300):
                self.product = big @ big
        if state.iteration == 5:
            raise OSError("the disk is full")


def test_a_run_that_fails_does_not_wait_for_a_device_that_is_busy(
    cuda: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_loop, "DEVICE_TIMEOUT_S", 0.0)
    storage = Storage(tmp_path)
    recorder = Recorder(storage, "stats/attempt=0/rank=0", {"rank": 0}, flush_s=3600)
    try:
        with pytest.raises(Exception, match="the disk is full"):
            list(loop_on(cuda, hooks={"fails": Fails()}, recorder=recorder).run())
        assert not torch.cuda.current_stream(cuda).query()
    finally:
        torch.cuda.synchronize()
    rows = open_recorded(storage, "rows").read().to_pylist()
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert all(row["host_step_s"] > 0 and "loss" not in row for row in rows)
