"""A batch cut into pieces along its samples."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from hooks.errors import add_article
from orchestrator.loop.step.batch_parts import container_with, items_in, leaves, moves_itself
from orchestrator.units import format_count


def count_rows(batch: Any) -> int:
    """Return the first dimension of a batch's first tensor with dimensions; 1 if there is none."""
    for leaf in leaves(batch):
        if isinstance(leaf, Tensor) and leaf.ndim:
            return len(leaf)
    return 1


def split_batch(batch: Any, number: int) -> list[Any]:
    """Split a batch along the first dimension of its tensors, into at most a piece for each row.

    Each piece repeats numbers, text and tensors without dimensions. Raises ValueError for a batch
    that cannot be split.
    """
    rows = count_rows(batch)
    number = min(number, rows)
    ends = [rows * place // number for place in range(number + 1)]
    return [_cut(batch, rows, slice(begin, end)) for begin, end in pairwise(ends)]


def _cut(part: Any, rows: int, cut: slice) -> Any:
    if isinstance(part, Tensor):
        if part.ndim == 0:
            return part
        if len(part) != rows:
            raise ValueError(
                f"it has a tensor of shape {tuple(part.shape)} beside others of {format_count(rows, 'row')}"
            )
        return part[cut]
    if moves_itself(part):
        raise ValueError(f"it has {add_article(type(part).__name__)}, whose samples are not known")
    parts = items_in(part)
    if parts is None:
        return part
    # A list with an entry for each sample, of text or of tensors of any shape.
    is_of_samples = isinstance(part, Sequence) and len(part) == rows
    if is_of_samples and not any(isinstance(leaf, Tensor) for leaf in leaves(part)):
        return part[cut]
    try:
        return container_with(part, [_cut(inner, rows, cut) for inner in parts])
    except ValueError:
        if is_of_samples:
            return part[cut]
        raise
