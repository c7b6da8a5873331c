"""What Hugging Face's `datasets` does not tell of an IterableDataset (5.2)."""

from __future__ import annotations

from typing import Any


def has_shuffle_buffer(dataset: Any) -> bool:
    """Whether a dataset has a buffer that it shuffles in, whose samples its state leaves out."""
    if type(dataset).__name__ == "BufferShuffledExamplesIterable":
        return True
    inner = [
        getattr(dataset, "_ex_iterable", None),
        getattr(dataset, "ex_iterable", None),
        *(getattr(dataset, "ex_iterables", None) or ()),
    ]
    return any(has_shuffle_buffer(other) for other in inner if other is not None)


def is_split_by_node(dataset: Any) -> bool:
    """Whether it has been told which rank it is for."""
    return getattr(dataset, "_distributed", None) is not None
