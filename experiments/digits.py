"""Handwritten digits: the smallest real task that ships."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from orchestrator import Task

TRAIN_SAMPLES = 1400
SPLIT_SEED = 0


@dataclass
class Digits(Task):
    """Classifies scikit-learn's 8x8 digits with a small convolutional network.

    1,797 real images of the UCI set "Optical Recognition of Handwritten Digits": 1,400 to train on,
    397 to validate. A batch is `(images, labels)`: (B, 1, 8, 8) float32 in [0, 1] and (B,) int64.
    Needs scikit-learn (extra `demo`).
    """

    width: Annotated[int, Gt(0)] = 32
    """Channels of the two convolutions."""

    def model(self) -> nn.Module:
        """Return two convolutions with batch norm and a linear layer; (B, 1, 8, 8) to (B, 10) logits."""
        return nn.Sequential(
            nn.Conv2d(1, self.width, 3, padding=1, bias=False),
            nn.BatchNorm2d(self.width),
            nn.ReLU(),
            nn.Conv2d(self.width, self.width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(self.width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(self.width * 4 * 4, 10),
        )

    def data(self) -> Mapping[str, Dataset[Any]]:
        """Return `train` and `val`, split by a fixed shuffle: the same samples in every run and on
        every rank."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
        labels = torch.from_numpy(digits.target).long()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
        train = order[:TRAIN_SAMPLES]
        val = order[TRAIN_SAMPLES:]
        return {
            "train": TensorDataset(images[train], labels[train]),
            "val": TensorDataset(images[val], labels[val]),
        }

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        """Return the cross entropy, the mean over the batch."""
        return functional.cross_entropy(output, batch[1])

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        """Return `accuracy`: 1 where the largest logit is the label's, else 0; shape (B,)."""
        return {"accuracy": (output.argmax(dim=1) == batch[1]).float()}
