"""A model whose training takes about ten times as long as its validation; in a file of its own, as
what imports Ray is trained where Ray is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from orchestrator import Task


@dataclass
class Layers(Task):
    """A perceptron of 0.3 million weights on random points."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )

    def data(self) -> Mapping[str, Dataset[Any]]:
        points = torch.randn(127_500, 64, generator=torch.Generator().manual_seed(0))
        labels = points[:, :10].argmax(dim=1)
        return {
            "train": TensorDataset(points[:100_000], labels[:100_000]),
            "val": TensorDataset(points[100_000:], labels[100_000:]),
        }

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch[1])
