"""Random views of images, a batch at a time, in torch alone."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class RandomView:
    """Cuts a rotated, stretched square out of each image, blurs some and adds noise: (B, 1, H, W)
    to (B, 1, size, size).

    Every image has its own draw, from torch's global generator. What lies outside an image is
    black.
    """

    size: int = 28
    """Side of the view in pixels."""
    scale: tuple[float, float] = (0.7, 1.1)
    """Smallest and largest side of the square as a share of the image's."""
    shift: float = 0.1
    """How far its middle may lie from the image's, as a share of the image's side, each way."""
    rotation: float = 15.0
    """Largest rotation either way, in degrees."""
    stretch: float = 0.2
    """Largest change of the ratio of its sides, and of its shear."""
    noise: float = 0.1
    """Largest standard deviation of the noise."""
    blur: float = 0.3
    """Share of the views that are blurred, by the mean of 3x3 pixels."""

    def __call__(self, images: Tensor) -> Tensor:
        grid = functional.affine_grid(
            self._maps(len(images)), [len(images), 1, self.size, self.size], align_corners=False
        )
        views = functional.grid_sample(images, grid, align_corners=False)
        blurred = functional.avg_pool2d(views, 3, stride=1, padding=1)
        views = torch.where(torch.rand(len(views), 1, 1, 1) < self.blur, blurred, views)
        return views + torch.rand(len(views), 1, 1, 1) * self.noise * torch.randn_like(views)

    def _maps(self, count: int) -> Tensor:
        """Return the affine maps (count, 2, 3) of views into their images, on [-1, 1]."""

        def within(limit: float) -> Tensor:
            return (2 * torch.rand(count) - 1) * limit

        low, high = self.scale
        side = low + torch.rand(count) * (high - low)
        angle, ratio, shear = (
            within(math.radians(self.rotation)),
            within(self.stretch),
            within(self.stretch),
        )
        cosine, sine = side * angle.cos(), side * angle.sin()
        wide, high_side = 1 + ratio, 1 - ratio
        rows = [
            torch.stack(
                [cosine * wide, -sine * high_side + cosine * shear, 2 * within(self.shift)], dim=1
            ),
            torch.stack(
                [sine * wide, cosine * high_side + sine * shear, 2 * within(self.shift)], dim=1
            ),
        ]
        return torch.stack(rows, dim=1)
