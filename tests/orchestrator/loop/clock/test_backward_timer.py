from __future__ import annotations

from contextlib import nullcontext
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.loop.clock.backward_timer import BackwardTimer
from orchestrator.loop.clock.span_clock import Clock
from tests.ranks import on_ranks

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"dtype": torch.bfloat16},
    "fp16": {"dtype": torch.float16},
    "accumulated": {"accumulate": 2},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "buckets": {"bucket_cap_mb": 0.001},
}


class Net(nn.Module):
    """Two layers, and one that is left out where asked."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.skipped, self.first, self.last = nn.Linear(32, 32), nn.Linear(5, 32), nn.Linear(32, 3)
        self.skip = skip

    def forward(self, points: Tensor) -> Tensor:
        hidden = self.first(points).relu()
        return self.last(hidden if self.skip else self.skipped(hidden).relu())


def _gradients(
    rank: int, looked_on: bool, accumulate: int = 1, dtype: Any = None, **options: Any
) -> tuple[list[Any], int]:
    """The gradients of three steps, and how many passes had a mark between their beginning and their end."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Net("find_unused_parameters" in options), broadcast_buffers=False, **options)
    clock, found, marks = Clock(), [], 0
    clock.recording = True
    own = BackwardTimer(model, clock) if looked_on else None
    draw = torch.Generator().manual_seed(rank)
    for iteration in range(3 * accumulate):
        exchanged = (iteration + 1) % accumulate == 0
        with nullcontext() if exchanged else model.no_sync():
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = model(torch.randn(8, 5, generator=draw)).square().mean()
            began = perf_counter()
            loss.backward()
        marks += own is not None and began < own.take(0.0) <= perf_counter()
        if exchanged:
            found.append([None if p.grad is None else p.grad.tolist() for p in model.parameters()])
            model.zero_grad()
    return found, marks


def _gradients_in_all_ways(rank: int, world_size: int) -> dict[str, Any]:
    return {
        way: [_gradients(rank, looked_on, **options) for looked_on in (False, True)] for way, options in WAYS.items()
    }


def _without_recording(rank: int, world_size: int) -> float:
    model = DistributedDataParallel(Net(False), broadcast_buffers=False)
    own = BackwardTimer(model, Clock())
    model(torch.ones(8, 5)).sum().backward()
    return float(own.take(-1.0))


def _timestamps(rank: int, world_size: int) -> list[float]:
    """Seconds at which a pass begins, is marked and ends, where rank 1 begins only once rank 0 has its mark."""
    model, clock = DistributedDataParallel(Net(False), broadcast_buffers=False), Clock()
    clock.recording, timer, store = True, BackwardTimer(model, clock), dist.distributed_c10d._get_default_store()

    def mark() -> float:
        now = perf_counter()
        store.set(f"marked by {rank}", "")
        return now

    clock.moment = mark
    loss = model(torch.ones(8, 5)).sum()
    if rank == 1:
        store.wait(["marked by 0"])
    began = perf_counter()
    loss.backward()
    ended = perf_counter()
    return [began, timer.take(ended), ended]


def _on_rank(rank: int, world_size: int) -> tuple[dict[str, Any], float, list[float]]:
    return _gradients_in_all_ways(rank, world_size), _without_recording(rank, world_size), _timestamps(rank, world_size)


def test_wait_is_measured_and_gradients_equal_those_of_ddp() -> None:
    (own, unmarked, (began, marked, ended)), (other, _, (late_began, late_marked, late_ended)) = on_ranks(_on_rank)
    for way in WAYS:
        (without, _), (gradients, marks) = own[way]
        assert gradients == without, way
        assert gradients == other[way][1][0], way
        assert marks == 3 * WAYS[way].get("accumulate", 1), way
    assert unmarked == -1.0
    assert began < marked < late_began < ended, "rank 0 waits after its mark"
    assert late_began < late_marked <= late_ended
