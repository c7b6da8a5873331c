"""Matrices, such as the confusion matrix of a meter: their files and their pictures."""

import io
from typing import Any

import numpy as np

from hooks.media import MediaEntry, encode_png

MAX_LABELED = 32
"""Largest number of rows or columns whose cells show their numbers."""
_LARGEST = 1024
"""Pixels of a matrix without numbers, at most."""
_CELL = 52
"""Pixels of a cell with a number."""
_MARGIN = 52
"""Pixels of the labels on the left and at the top."""
_COLOR = np.array([0x1E, 0x5D, 0xC0])
_INK = (0x1B, 0x1F, 0x26)


def encode_matrix(values: Any, corner: str) -> bytes:
    """Return a matrix as CSV with numbered rows and columns; `corner` names both."""
    from pandas import DataFrame

    text: str = DataFrame(values).rename_axis(corner).to_csv()
    return text.encode()


def read_matrix(data: bytes) -> Any:
    """Return the DataFrame that `encode_matrix` wrote."""
    from pandas import read_csv

    return read_csv(io.BytesIO(data), index_col=0)


def compute_shares(frame: Any) -> Any:
    """Return each value as a share of the largest in its row, from 0 to 1, to be its darkness."""
    sizes = np.nan_to_num(np.abs(frame.to_numpy(dtype=float)))
    return sizes / np.maximum(sizes.max(axis=1, keepdims=True), np.finfo(float).tiny)


def format_number(value: float) -> str:
    """Format a number of a cell: counts with all their digits, others with three."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def draw_matrix(data: bytes) -> bytes:
    """Return the PNG image of a matrix; its cells show their numbers if there are few."""
    frame = read_matrix(data)
    shares = 0.6 * compute_shares(frame)[..., None]
    colors = (255 - shares * (255 - _COLOR)).round().astype(np.uint8)
    if max(frame.shape) > MAX_LABELED:
        scale = max(1, _LARGEST // max(frame.shape))
        return encode_png(colors.repeat(scale, 0).repeat(scale, 1))
    return _draw_labeled(frame, colors)


def _draw_labeled(frame: Any, colors: Any) -> bytes:
    """Return the PNG image of a matrix with its labels, and with the number of each cell."""
    from PIL import Image, ImageDraw

    rows, columns = frame.shape
    image = Image.new("RGB", (_MARGIN + columns * _CELL, _MARGIN + rows * _CELL), "white")
    image.paste(Image.fromarray(colors.repeat(_CELL, 0).repeat(_CELL, 1)), (_MARGIN, _MARGIN))
    pen = ImageDraw.Draw(image)

    def write(row: float, column: float, text: str) -> None:
        place = (_MARGIN + (column + 0.5) * _CELL, _MARGIN + (row + 0.5) * _CELL)
        pen.text(place, text, fill=_INK, anchor="mm")

    pen.text((4, 4), frame.index.name or "", fill=_INK)
    for column, label in enumerate(frame.columns):
        write(-0.75, column, str(label))
    for row, label in enumerate(frame.index):
        write(row, -0.75, str(label))
        for column, value in enumerate(frame.iloc[row]):
            write(row, column, format_number(value))
    return encode_png(np.asarray(image))


def find_image(entry: MediaEntry, data: bytes) -> bytes | None:
    """Return the PNG image of what has a file, drawn if it is a matrix; None for a table."""
    if entry.kind == "matrix":
        return draw_matrix(data)
    return data if entry.is_image else None
