"""Pieces of a batch, for a memory that the whole does not fit. Worker process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from orchestrator.loop.step.transfer import held, holding, leaves, moves_itself

_WORDS = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""How torch says in a RuntimeError of no class of its own that memory ran out."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed, on a device or on the host."""
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in _WORDS)


def rows_of(batch: Any) -> int:
    """How many rows a batch can be cut into: the length of its first tensor that has one; 1 where there is none."""
    return next((len(leaf) for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim), 1)


def microbatches_of(batch: Any, number: int) -> list[Any]:
    """A batch cut into pieces along the first dimension of its tensors, as many as asked for or as it has rows; what
    all samples share (numbers, text, tensors without dimensions) is in each. Raises ValueError where that cannot be."""
    rows = rows_of(batch)
    number = min(number, rows)
    ends = [rows * place // number for place in range(number + 1)]
    return [_piece(batch, rows, slice(*bounds)) for bounds in pairwise(ends)]


def _piece(part: Any, rows: int, cut: slice) -> Any:
    if isinstance(part, Tensor):
        if part.ndim and len(part) != rows:
            raise ValueError(f"it has a tensor of shape {tuple(part.shape)} beside others of {rows} rows")
        return part[cut] if part.ndim else part
    if moves_itself(part):
        raise ValueError(f"it has a {type(part).__name__}, whose samples are not known")
    parts = held(part)
    if parts is None:
        return part
    # A list with an entry for each sample, of text or of tensors of any shape.
    is_of_samples = isinstance(part, Sequence) and len(part) == rows
    if is_of_samples and not any(isinstance(leaf, Tensor) for leaf in leaves(part)):
        return part[cut]
    try:
        return holding(part, [_piece(one, rows, cut) for one in parts])
    except ValueError:
        if is_of_samples:
            return part[cut]
        raise
