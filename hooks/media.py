"""Images, figures and tables that a task or a hook records: their names, checks and files. Needs no
torch.

A file is a PNG image or a CSV table. What copies and checks runs at once; what encodes runs in the
thread that writes the file.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from hooks.errors import add_article
from hooks.position import Count

Kind = Literal["image", "figure", "table", "matrix"]
Encode = Callable[[], bytes]
"""Function that returns the content of a file."""
FOLDER = "media"
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


def encode_png(pixels: Any) -> bytes:
    """Return the PNG image of an array of bytes of shape (H, W, C)."""
    from PIL import Image

    if pixels.shape[2] == 1:  # gray
        pixels = np.squeeze(pixels, 2)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def measure_png(data: bytes) -> tuple[int, int]:
    """Return the width and the height of a PNG image in pixels."""
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def read_table(data: bytes) -> Any:
    """Return the DataFrame in the file of a table."""
    from pandas import read_csv

    return read_csv(io.BytesIO(data))


def draw_figure(name: str, figure: Any) -> Encode:
    """Draw a figure at once, because it may change, and Matplotlib must not draw in two threads.

    Raises ValueError for an object that cannot be saved as a picture.
    """
    if not callable(getattr(figure, "savefig", None)):
        raise ValueError(
            f"figure '{name}' is {add_article(type(figure).__name__)}; expected a Matplotlib figure, or"
            " another object with savefig(file, format='png')"
        )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue


def copy_table(name: str, frame: Any) -> Encode:
    """Copy a table, and return the function that encodes it. Raises ValueError for another type."""
    from pandas import DataFrame, RangeIndex

    if not isinstance(frame, DataFrame):
        raise ValueError(
            f"table '{name}' is {add_article(type(frame).__name__)}; expected a pandas DataFrame"
        )
    has_index = not frame.index.identical(RangeIndex(len(frame)))
    return partial(_encode_table, frame.copy(), has_index)


def _encode_table(frame: Any, has_index: bool) -> bytes:
    text: str = frame.to_csv(index=has_index)
    return text.encode()
