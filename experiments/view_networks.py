"""Networks that learn from several views of an image."""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional


def backbone(width: int) -> nn.Sequential:
    """Make a small convolutional network: images (B, 1, H, W) of any size to features (B, 16 * width),
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
    """Make two linear layers with batch norm between them."""
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
