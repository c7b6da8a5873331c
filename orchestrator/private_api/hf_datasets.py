"""Private state of an IterableDataset of Hugging Face's `datasets` (5.2)."""

from typing import Any


def has_shuffle_buffer(dataset: Any) -> bool:
    """Return whether a dataset has a shuffle buffer; its state does not include the buffer's
    samples."""
    if type(dataset).__name__ == "BufferShuffledExamplesIterable":
        return True
    inner = [
        getattr(dataset, "_ex_iterable", None),
        getattr(dataset, "ex_iterable", None),
        *(getattr(dataset, "ex_iterables", None) or ()),
    ]
    return any(has_shuffle_buffer(other) for other in inner if other is not None)


def is_split_by_node(dataset: Any) -> bool:
    """Return whether a dataset is already split by rank."""
    return getattr(dataset, "_distributed", None) is not None
