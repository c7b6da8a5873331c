"""Images that are recorded as tensors."""

from functools import partial

import torch
from torch import Tensor

from hooks.errors import add_article
from hooks.media import Encode, encode_png

MAX_IMAGES = 64
"""Maximum number of images of a batch that are shown."""
_COLUMNS = 8
"""Images in a row of a batch, as in torchvision's `make_grid`."""
_GAP = 2
"""Pixels between the images of a batch, as in torchvision's `make_grid`."""


def copy_image(name: str, tensor: Tensor) -> Encode:
    """Copy an image or a batch of images to the host, and return the function that encodes it.

    Raises ValueError for a wrong type or shape, or a value that is not finite.
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(
            f"image '{name}' is {add_article(type(tensor).__name__)}; expected a tensor"
        )
    shape = tuple(tensor.shape)
    has_channels = len(shape) == 2 or (len(shape) in (3, 4) and shape[-3] in (1, 3, 4))
    if not has_channels or 0 in shape:
        raise ValueError(
            f"image '{name}' has the shape {shape}; expected (H, W), (C, H, W) or a batch"
            " (N, C, H, W), with 1, 3 or 4 channels C"
        )
    if not (tensor.is_floating_point() or tensor.dtype in (torch.uint8, torch.bool)):
        raise ValueError(
            f"image '{name}' has the type {tensor.dtype}; expected uint8, or floats from 0 to 1"
        )
    channels, height, width = (1, *shape)[-3:]
    batch = tensor.detach().reshape(-1, channels, height, width)
    images = batch[:MAX_IMAGES].to("cpu", copy=True)
    if images.is_floating_point() and not bool(images.isfinite().all()):
        raise ValueError(f"image '{name}' has values that are NaN or infinite")
    return partial(_encode_images, images)


def _encode_images(images: Tensor) -> bytes:
    """Return the PNG image of a batch of shape (N, C, H, W)."""
    if images.dtype != torch.uint8:
        images = (images.float().clamp(0, 1) * 255).round().to(torch.uint8)
    count, channels, height, width = images.shape
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    grid = images.new_zeros(
        channels, rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP
    )
    for place, image in enumerate(images):
        top = place // columns * (height + _GAP)
        left = place % columns * (width + _GAP)
        grid[:, top : top + height, left : left + width] = image
    return encode_png(grid.permute(1, 2, 0).numpy())
