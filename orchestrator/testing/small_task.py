"""A small task to train hooks with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from orchestrator.task import Task


@dataclass
class SmallTask(Task):
    """Classifies points (5,) into three classes, with BatchNorm and dropout; a batch is
    `[points, labels]`."""

    train: int = 24  # type: ignore[assignment]  # a field, not a custom loop
    """Training samples."""
    val: int = 8
    """Validation samples."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)
        )

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {
            phase: _make_points(size, seed)
            for seed, (phase, size) in enumerate({"train": self.train, "val": self.val}.items())
        }

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch[1])

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        return {"accuracy": (output.argmax(dim=1) == batch[1]).float()}


def _make_points(size: int, seed: int) -> Dataset[Any]:
    points = torch.randn(size, 5, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (points[:, 0] > 0).long() + (points[:, 1] > 0.5).long())
