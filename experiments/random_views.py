"""Random views of images, a batch at a time, in torch alone, and a dataset of them."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset


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
        """Return a view of each image."""
        count = len(images)
        grid = functional.affine_grid(
            self._draw_maps(count), [count, 1, self.size, self.size], align_corners=False
        )
        views = functional.grid_sample(images, grid, align_corners=False)
        blurred = functional.avg_pool2d(views, 3, stride=1, padding=1)
        views = torch.where(torch.rand(count, 1, 1, 1) < self.blur, blurred, views)
        return views + torch.rand(count, 1, 1, 1) * self.noise * torch.randn_like(views)

    def _draw_maps(self, count: int) -> Tensor:
        """Draw the affine maps (count, 2, 3) of views into their images, on [-1, 1]."""

        def draw_within(limit: float) -> Tensor:
            return (2 * torch.rand(count) - 1) * limit

        low, high = self.scale
        side = low + torch.rand(count) * (high - low)
        angle = draw_within(math.radians(self.rotation))
        stretch = draw_within(self.stretch)
        shear = draw_within(self.stretch)
        cosine = side * angle.cos()
        sine = side * angle.sin()
        wider = 1 + stretch
        lower = 1 - stretch

        x = [cosine * wider, -sine * lower + cosine * shear, 2 * draw_within(self.shift)]
        y = [sine * wider, cosine * lower + sine * shear, 2 * draw_within(self.shift)]
        return torch.stack([torch.stack(x, dim=1), torch.stack(y, dim=1)], dim=1)


class Views(Dataset[Any]):
    """Random views of images: a batch is `(views, indices)`, a list of tensors (B, 1, size, size)
    and the places (B,).

    Views are made for a whole batch at once (`__getitems__`), which a loader must not collate
    again.
    """

    def __init__(self, images: Tensor, views: list[RandomView]) -> None:
        self.images = images
        self.views = views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        views, _ = self.__getitems__([index])
        return [view[0] for view in views], index

    def __getitems__(self, indices: list[int]) -> tuple[list[Tensor], Tensor]:
        images = self.images[indices]
        return [view(images) for view in self.views], torch.tensor(indices)
