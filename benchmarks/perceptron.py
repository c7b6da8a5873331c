"""Model and data of every loop of the overhead benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from orchestrator import Task

REPEATS = 10
"""An epoch goes over the digits this often, so that what an epoch costs once hardly counts."""


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def make_data() -> TensorDataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.data).float() / 16
    return TensorDataset(
        images.repeat(REPEATS, 1), torch.from_numpy(digits.target).long().repeat(REPEATS)
    )


@dataclass
class Perceptron(Task):
    """The same model and data as a task."""

    def model(self) -> nn.Module:
        return make_model()

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": make_data()}

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch[1])
