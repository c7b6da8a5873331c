"""MNIST without labels: features learned by MoCo, BYOL and DINO, and the base of such tasks."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.utils.data import Dataset

from experiments.losses.byol import BYOLLoss
from experiments.losses.dino import DINOLoss
from experiments.losses.moco import MoCoLoss
from experiments.mnist import load_mnist
from experiments.random_views import RandomView, Views
from experiments.view_networks import DINOHead, ViewsNetwork, backbone, head
from hooks.self_supervised.byol import BYOLOutput
from hooks.self_supervised.dino import DINOOutput
from hooks.self_supervised.moco import MoCoOutput
from orchestrator import Task


@dataclass
class MnistViews(Task):
    """Shared part of the tasks on MNIST without labels: random views of its images, and a small
    encoder.

    A batch is `(views, indices)`; see `Views`. Only probes see the labels; see `load_mnist`.
    """

    width: Annotated[int, Gt(0)] = 16
    """Channels of the first and last convolution; features have 16 times as many numbers."""
    embedding: Annotated[int, Gt(0)] = 64
    """Size of the head's output."""

    def views(self) -> list[RandomView]:
        """Return the views that are made of each image."""
        return [RandomView(), RandomView()]

    def data(self) -> Mapping[str, Dataset[Any]]:
        """Return `train` and `val`, without labels."""
        data = {}
        for phase, dataset in load_mnist().items():
            images = dataset.tensors[0]
            data[phase] = Views(images, self.views())
        return data

    def model(self) -> nn.Module:
        """Return an encoder of views."""
        return ViewsNetwork(
            backbone(self.width), head(16 * self.width, 16 * self.width, self.embedding)
        )

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return the outputs of all views, a list."""
        return model(batch[0])

    @abstractmethod
    def loss(self, output: Any, batch: Any) -> Tensor:
        """Return a scalar, the mean over the batch."""

    def batch_size(self, batch: Any) -> int:
        """Return the number of images, not of views."""
        return len(batch[1])

    def collate(self, samples: Any) -> Any:
        """Return the samples: the dataset makes whole batches."""
        return samples


@dataclass
class MnistMoCo(MnistViews):
    """Momentum contrast: the first view of an image finds the second among those of other
    images."""

    temperature: Annotated[float, Gt(0)] = 0.1
    """Divisor of the similarities."""

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return the embeddings of the first view, (B, embedding): the queries."""
        return model(batch[0][:1])

    def loss(self, output: MoCoOutput, batch: Any) -> Tensor:
        """Return InfoNCE."""
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
        """Return an encoder of views and a predictor."""
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
        """Return two large crops, then small ones."""
        local = RandomView(size=16, scale=(0.4, 0.6), shift=0.2)
        return [RandomView(), RandomView(), *[local] * self.local_views]

    def model(self) -> nn.Module:
        """Return an encoder of views whose head ends in unit-length directions."""
        hidden = 16 * self.width
        return ViewsNetwork(backbone(self.width), DINOHead(hidden, self.embedding, self.prototypes))

    def loss(self, output: DINOOutput, batch: Any) -> Tensor:
        """Return the cross entropy between teacher and student of different views."""
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
