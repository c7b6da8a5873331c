"""Summaries, in which TensorBoard's event files hold curves, histograms, images and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor
from torch.utils.tensorboard.summary import histogram, text

from hooks.matrix import find_image
from hooks.media import MediaEntry, measure_png, read_table

MAX_ROWS = 100
"""Maximum number of rows of a recorded table."""


def make_curves(values: Mapping[str, float]) -> Any:
    """Return the summary of a point of each curve."""
    points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    return Summary(value=points)


def make_histogram(tag: str, tensor: Tensor, bins: Sequence[float]) -> Any | None:
    """Return the summary of a tensor's finite values; None if it has none."""
    values = tensor.detach()
    if values.is_sparse:
        values = values.coalesce().values()
    if values.is_complex():  # real and imaginary parts
        values = torch.view_as_real(values.resolve_conj())
    values = values.float().cpu()
    finite = values[values.isfinite()]
    return histogram(tag, finite, bins) if finite.numel() else None


def make_media(entry: MediaEntry, data: bytes) -> Any:
    """Return the summary of an image, a figure or a table; `data` is the content of its file."""
    png = find_image(entry, data)
    if png is None:
        return text(entry.name, _format_table(read_table(data)))
    width, height = measure_png(png)
    image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=png)
    return Summary(value=[Summary.Value(tag=entry.name, image=image)])


def _format_table(frame: Any) -> str:
    """Return a table in Markdown, which TensorBoard shows."""
    cells = [map(str, frame.columns), ["---"] * len(frame.columns)]
    cells += [map(str, row) for row in frame.head(MAX_ROWS).itertuples(index=False)]
    lines = [" | ".join(map(_escape, row)) for row in cells]
    return "\n".join(f"| {line} |" for line in lines)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
