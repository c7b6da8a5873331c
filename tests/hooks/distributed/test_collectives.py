import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hooks.distributed import collectives
from hooks.training.ema import EMA
from hooks.training.loss_spike import LossSpike
from hooks.training.precise_batch_norm import PreciseBatchNorm
from hooks.training.sync_buffers import SyncBuffers
from orchestrator.testing.training import train
from tests.ranks import on_ranks


def _all_three(rank: int, world_size: int) -> list[list[object]]:
    def tensors() -> list[torch.Tensor]:
        return [
            torch.tensor([[1.0, 2.0]]) * (rank + 1),
            torch.tensor(4.0 + rank, dtype=torch.float64),
        ]

    means = tensors()
    sums = tensors()
    firsts = [torch.tensor(rank + 7), torch.tensor([rank == 0, rank == 1]), torch.tensor([])]
    big_halves = torch.tensor([60000.0], dtype=torch.float16)
    collectives.average([*means, big_halves])
    collectives.sum_across_ranks(sums, world_size)
    collectives.broadcast(firsts)
    return [list(map(Tensor.tolist, group)) for group in (means, sums, firsts, [big_halves])]


def test_every_rank_gets_means_sums_and_the_masters_values() -> None:
    expected = [[[[1.5, 3.0]], 4.5], [[[3.0, 6.0]], 9.0], [7, [True, False], []], [[60000.0]]]
    for values in on_ranks(_all_three):
        assert values[:3] == expected[:3]
        assert values[3][0][0] == float(torch.tensor(60000.0).half())


def test_cpu_tensors_go_through_the_gpu_with_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    on_gpu: list[torch.Tensor] = []
    monkeypatch.setattr(
        torch.Tensor, "cuda", lambda tensor: on_gpu.append(tensor.clone()) or on_gpu[-1]
    )
    monkeypatch.setattr(
        dist, "all_reduce", lambda tensor: tensor.mul_(2) if tensor is on_gpu[-1] else None
    )
    tensor = torch.ones(2)
    collectives.sum_across_ranks([tensor], world_size=2)
    assert tensor.tolist() == [2.0, 2.0]


def _train_alone() -> list[float]:
    hooks = {
        "ema": EMA(buffers="ema"),
        "loss_spike": LossSpike(),
        "precise_batch_norm": PreciseBatchNorm(num_samples=8),
        "sync_buffers": SyncBuffers(),
    }
    return [report["val/loss"] for report in train(hooks).reports]


def _train_on_rank_0(rank: int, world_size: int) -> list[float]:
    return [] if rank else _train_alone()


def test_hooks_of_a_run_of_one_rank_wait_for_no_other_process_of_its_group() -> None:
    losses, nothing = on_ranks(_train_on_rank_0)
    assert losses == pytest.approx(_train_alone())
    assert nothing == []
