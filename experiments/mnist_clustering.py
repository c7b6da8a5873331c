"""MNIST without labels: features learned by SwAV and DeepCluster v2."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional

from experiments.losses.deepcluster import DeepClusterLoss
from experiments.losses.swav import SwAVLoss
from experiments.mnist_ssl import MnistViews
from experiments.random_views import RandomView
from experiments.view_networks import backbone, head
from hooks.self_supervised.deepcluster import ClusteredViews
from hooks.self_supervised.shared.swapped_prediction import SwappedViews


class PrototypesNetwork(nn.Module):
    """An encoder (`encoder.backbone` and `encoder.head`) and `prototypes`.

    Takes a list of views, (B, 1, H, W) each, and gives their unit-length embeddings, a list of (B,
    D), and the similarities of these to the prototypes, a list of (B, K); each view has its own
    batch statistics.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, prototypes: nn.Linear) -> None:
        super().__init__()
        self.encoder = nn.Sequential(OrderedDict(backbone=backbone, head=head))
        self.prototypes = prototypes

    def forward(self, views: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        embeddings = [functional.normalize(self.encoder(view), dim=1) for view in views]
        return embeddings, [self.prototypes(embedding) for embedding in embeddings]


@dataclass
class _MultiCrop(MnistViews):
    """Two large crops of each image, then small ones."""

    local_views: Annotated[int, Ge(0)] = 2
    """Small crops beside the two large ones."""
    temperature: Annotated[float, Gt(0)] = 0.1
    """Divisor of the similarities."""

    def views(self) -> list[RandomView]:
        """Return the large crops, then the small ones."""
        local = RandomView(size=16, scale=(0.4, 0.6), shift=0.2)
        return [RandomView(), RandomView(), *[local] * self.local_views]


@dataclass
class MnistSwAV(_MultiCrop):
    """Swapped prediction: every view of an image predicts the codes that a large crop of it was
    given."""

    prototypes: Annotated[int, Gt(1)] = 64
    """Directions that images are assigned to."""
    momentum_encoder: bool = False
    """True for the codes of a momentum encoder."""
    freeze_prototypes: Annotated[int, Ge(0)] = 1
    """Epochs in which the prototypes are not trained."""

    def model(self) -> nn.Module:
        """Return an encoder of views, and prototypes."""
        hidden = 16 * self.width
        prototypes = nn.Linear(self.embedding, self.prototypes, bias=False)
        return PrototypesNetwork(
            backbone(self.width), head(hidden, hidden, self.embedding), prototypes
        )

    def loss(self, output: SwappedViews, batch: Any) -> Tensor:
        """Return the cross entropy between the codes and the scores of different views."""
        return self._loss(output)

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hooks of the loss, and one that freezes the prototypes at first."""
        freeze = {
            "type": "freeze_parameters",
            "patterns": ["prototypes.weight"],
            "until": self.freeze_prototypes,
        }
        return {**self._loss.required_hooks(), "freeze_prototypes": freeze}

    @property
    def _loss(self) -> SwAVLoss:
        return SwAVLoss(self.temperature, self.momentum_encoder)


@dataclass
class MnistDeepCluster(_MultiCrop):
    """DeepCluster v2: every view of an image predicts the cluster its embedding had as the epoch
    began."""

    def loss(self, output: ClusteredViews, batch: Any) -> Tensor:
        """Return the cross entropy between the clusters and the scores of all views."""
        return DeepClusterLoss(self.temperature)(output)

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hooks of the loss."""
        return DeepClusterLoss().required_hooks()
