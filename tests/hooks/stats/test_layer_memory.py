"""Memory by layer: the sizes of outputs by arithmetic, CUDA's against an allocator whose readings
are known."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from hooks import Plan, State
from hooks.interval import Interval
from hooks.stats.layer_memory import LayerMemory

EVERY_STEP = Interval(1, "steps")


def _pass(folder: Path, model: nn.Module, batch: Any, device: str = "cpu") -> pd.DataFrame:
    state = State(
        module=model, model=model, artifacts=folder, phase="train", device=torch.device(device)
    )
    plan = Plan({"memory": LayerMemory(every=EVERY_STEP)})
    plan.fire("on_start", state)
    plan.fire("on_batch", state)
    model(batch)
    plan.fire("on_forward", state)
    plan.fire("on_end", state)
    return pd.read_parquet(folder / "layer_memory")


def test_on_the_cpu_only_output_sizes_are_measured(tmp_path: Path) -> None:
    table = _pass(
        tmp_path, nn.Sequential(nn.Linear(3, 8), nn.Sequential(nn.LSTM(8, 5))), torch.randn(6, 3)
    )
    assert table["layer"].tolist() == ["0", "1.0"]
    assert table["output_bytes"].tolist() == [6 * 8 * 4, 6 * 5 * 4 + 2 * 5 * 4]
    assert "allocated_bytes" not in table


class Sparse(nn.Module):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.to_sparse()


def test_sparse_outputs_do_not_count(tmp_path: Path) -> None:
    assert _pass(tmp_path, Sparse(), torch.eye(3))["output_bytes"].tolist() == [0]


def test_on_cuda_a_layer_has_its_allocated_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Holds(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size

        def forward(self, batch: Any) -> Any:
            nonlocal held
            held += self.size
            return batch

    held = 1000
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held)
    table = _pass(
        tmp_path,
        nn.Sequential(Holds(50), nn.Sequential(Holds(7), Holds(-20))),
        torch.ones(2),
        "cuda",
    )
    assert table["allocated_bytes"].tolist() == [50, 7, -20]
