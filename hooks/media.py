"""Images, figures and tables that a task or a hook records: their names, checks and files.

A file is a PNG image or a CSV table. What copies from the device and checks runs at once; what
encodes runs in the thread that writes the file.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hooks.position import Count

Kind = Literal["image", "figure", "table", "matrix"]
Encode = Callable[[], bytes]
"""Function that returns the content of a file."""
FOLDER = "media"
MAX_IMAGES = 64
"""Maximum number of images of a batch that are shown."""
_COLUMNS = 8
"""Images in a row of a batch, as in torchvision's `make_grid`."""
_GAP = 2
"""Pixels between the images of a batch, as in torchvision's `make_grid`."""
_NAME = re.compile(r"[^/\\.\x00-\x1f][^/\\\x00-\x1f]*(/[^/\\.\x00-\x1f][^/\\\x00-\x1f]*)*")


@dataclass(frozen=True)
class MediaEntry:
    """An image, a figure or a table in the index of a run."""

    name: str
    """Its name after that of the phase, and after the label of other weights, as metrics have it:
    `val/samples` or `val/ema/samples`."""
    kind: Kind
    phase: str
    epoch: Count
    """Number of the epoch, from 0, as in rows."""
    step: Count
    """Completed optimizer steps."""
    iteration: Count
    """Completed micro-batches of training."""
    samples: Count
    """Completed training samples of all ranks."""
    width: Count = 0
    """Pixels of an image; 0 for a table."""
    height: Count = 0
    """Pixels of an image; 0 for a table."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} cannot be the name of a file; expected words joined by /, such as"
                " 'samples/first', none of which begins with a dot"
            )

    @property
    def is_image(self) -> bool:
        """True if its file is a PNG image."""
        return self.kind in ("image", "figure")

    @property
    def file(self) -> str:
        """Path of its file in the run's folder."""
        suffix = "png" if self.is_image else "csv"
        return f"{FOLDER}/{self.name}/step-{self.step:08d}.{suffix}"


def copy_image(name: str, tensor: Tensor) -> Encode:
    """Copy an image or a batch of images to the host, and return the function that encodes it.

    Raises ValueError for a wrong type or shape, or a value that is not finite.
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"image '{name}' is a {type(tensor).__name__}; expected a tensor")
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
    images = tensor.detach().reshape(-1, *(1, *shape)[-3:])[:MAX_IMAGES].to("cpu", copy=True)
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


def encode_png(pixels: Any) -> bytes:
    """Return the PNG image of an array of bytes of shape (H, W, C)."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.squeeze(pixels, 2) if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def measure_png(data: bytes) -> tuple[int, int]:
    """Return the width and the height of a PNG image in pixels."""
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def draw_figure(name: str, figure: Any) -> Encode:
    """Draw a figure at once, because it may change, and Matplotlib must not draw in two threads.

    Raises ValueError for an object that cannot be saved as a picture.
    """
    if not callable(getattr(figure, "savefig", None)):
        raise ValueError(
            f"figure '{name}' is a {type(figure).__name__}; expected a Matplotlib figure, or"
            " another object with savefig(file, format='png')"
        )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue


def copy_table(name: str, frame: Any) -> Encode:
    """Copy a table, and return the function that encodes it. Raises ValueError for another type."""
    from pandas import DataFrame, RangeIndex

    if not isinstance(frame, DataFrame):
        raise ValueError(f"table '{name}' is a {type(frame).__name__}; expected a pandas DataFrame")
    has_index = not isinstance(frame.index, RangeIndex)
    return partial(_encode_table, frame.copy(), has_index)


def _encode_table(frame: Any, has_index: bool) -> bytes:
    text: str = frame.to_csv(index=has_index)
    return text.encode()
