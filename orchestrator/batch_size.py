"""The number of samples in a nested batch. Used in workers."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from orchestrator.errors import TaskError

_ADVICE = "define batch_size() in the task"


def count_samples(batch: Any, *, is_stacked: bool) -> int:
    """Return the number of samples of a batch, which is the first dimension of its first tensor,
    depth first.

    `is_stacked` says that `default_collate` has made the batch, whose tensors all have a row for
    each sample. Another collate function may also list the samples, as detection does, so that a
    tensor is only a part of one sample. Raises TaskError if the tensors and the lists suggest
    different numbers.
    """
    sizes = list(_find_sizes(batch, is_outermost=True))
    if not sizes:
        raise TaskError(
            "the batch has no tensor with a dimension, so its number of samples is unknown; "
            f"{_ADVICE}"
        )
    if is_stacked:
        return sizes[0]

    with_lists = list(_find_sizes_with_lists(batch, is_outermost=True))
    if with_lists == sizes:
        # A list of values may hold the size of an image.
        tensors = list(_find_sizes(batch, is_outermost=True, counts_values=False))
        if tensors and tensors[0] != sizes[0]:
            raise _make_ambiguity_error(tensors, with_lists)
        return sizes[0]

    candidates = {numbers[0] for numbers in (sizes, with_lists) if len(set(numbers)) == 1}
    if len(candidates) == 1:
        return candidates.pop()
    # All images of a batch may happen to have three boxes, as many as channels.
    if candidates and _has_listed_mappings(batch):
        return with_lists[0]
    raise _make_ambiguity_error(sizes, with_lists)


def _make_ambiguity_error(sizes: list[int], with_lists: list[int]) -> TaskError:
    return TaskError(
        "the number of samples in the batch is ambiguous: its tensors begin with dimensions of "
        f"{_list_numbers(sizes)}, and its parts have lengths of {_list_numbers(with_lists)}; "
        f"{_ADVICE}"
    )


def _find_sizes(
    part: Any, *, is_outermost: bool = False, counts_values: bool = True
) -> Iterator[int]:
    """Yield the number of samples in each leaf of a batch, depth first: in a tensor, a graph, and
    with `counts_values` in a list of texts or numbers."""
    size = _get_own_size(part)
    items = _list_items(part)
    if size is not None:
        yield size
    elif items and isinstance(part, list | tuple) and not any(map(_holds_more, items)):
        if counts_values and not (is_outermost and isinstance(part, tuple)):
            yield len(items)
    else:
        for item in items:
            yield from _find_sizes(item, counts_values=counts_values)


def _find_sizes_with_lists(part: Any, *, is_outermost: bool = False) -> Iterator[int]:
    """Yield the number of samples in each part, if lists and tuples have an item for each
    sample."""
    size = _get_own_size(part)
    items = _list_items(part)
    if size is not None:
        yield size
        return

    is_inner_list = isinstance(part, list | tuple) and not is_outermost
    if items and (is_inner_list or _is_list_of(Mapping, part)):
        yield len(items)
        return

    # The tuples of a list are samples, or each of them lists samples.
    if items and _is_list_of(tuple, part):
        yield len(items)
    for item in items:
        yield from _find_sizes_with_lists(item)


def _has_listed_mappings(batch: Any) -> bool:
    """Return whether a part of a batch is a list of mappings, such as the targets of a detector."""
    return any(part and _is_list_of(Mapping, part) for part in _list_items(batch))


def _is_list_of(kind: type[Any], part: Any) -> bool:
    return isinstance(part, list) and all(isinstance(item, kind) for item in part)


def _get_own_size(part: Any) -> int | None:
    """Return the number of samples that an object itself tells; None for a container and for a
    scalar."""
    # The names of PyG and DGL.
    for name in ("num_graphs", "batch_size"):
        value = getattr(part, name, None)
        if type(value) is int:
            return value
    # A PackedSequence.
    if hasattr(part, "batch_sizes"):
        return int(part.batch_sizes[0])
    if getattr(part, "is_nested", False):
        return int(part.size(0))
    shape = getattr(part, "shape", None)
    return int(shape[0]) if shape else None


def _list_items(part: Any) -> list[Any]:
    """Return the items of a container, and none of anything else."""
    if isinstance(part, Mapping):
        return list(part.values())
    if isinstance(part, list | tuple):
        return list(part)
    if is_dataclass(part) and not isinstance(part, type):
        return [getattr(part, field.name) for field in fields(part)]
    return []


def _holds_more(item: Any) -> bool:
    """Return whether an item is a tensor, a container or another object, and not a text or a
    number."""
    return item is not None and not isinstance(item, str | bytes | int | float)


def _list_numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(numbers)))
