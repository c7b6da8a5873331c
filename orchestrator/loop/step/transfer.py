"""The transfer of batches to the device."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """Move the tensors of a nested batch to a device. Containers and dataclasses keep their type.

    An object with its own `to` method (a PackedSequence, a graph, a custom batch class) is moved by
    that method.
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    parts = items_in(batch)
    if parts is None:
        return batch.to(device) if moves_itself(batch) else batch
    moved = [to_device(part, device) for part in parts]
    if all(new is old for new, old in zip(moved, parts, strict=True)):
        return batch
    return container_with(batch, moved)


def moves_itself(part: Any) -> bool:
    """Return whether a part of a batch has its own `to` method, like a tensor."""
    return callable(getattr(part, "to", None))


def items_in(batch: Any) -> list[Any] | None:
    """Return the items of a container; None for anything else, such as what moves itself."""
    if moves_itself(batch):
        return None
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return list(batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name) for field in fields(batch)]
    return None


def container_with(batch: Any, items: list[Any]) -> Any:
    """Return a container of the same type with new items."""
    if isinstance(batch, Mapping):
        mapping = copy(batch) if isinstance(batch, MutableMapping) else dict(batch)
        mapping.update(zip(batch, items, strict=True))
        return mapping
    if isinstance(batch, Sequence):
        kind: Any = type(batch)
        return kind(*items) if hasattr(batch, "_fields") else kind(items)
    other = copy(batch)
    for field, item in zip(fields(batch), items, strict=True):
        # Works for frozen dataclasses too.
        object.__setattr__(other, field.name, item)
    return other


def leaves(batch: Any) -> Iterator[Any]:
    """Yield the leaves of a batch: tensors, objects that move themselves, and other values."""
    parts = items_in(batch)
    if parts is None:
        yield batch
        return
    for part in parts:
        yield from leaves(part)


class StreamTransfer:
    """Transfer of batches to a GPU on its own stream, while the GPU computes the previous batch.

    On the compute stream, a copy would wait for the computation. The compute
    stream waits for the copy before it uses the batch. The host does not wait if the batch is in
    pinned memory. A batch with a part that moves itself is copied on the compute stream, because
    its memory cannot be protected from later copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def __call__(self, batch: Any) -> Any:
        if any(moves_itself(leaf) and not isinstance(leaf, Tensor) for leaf in leaves(batch)):
            return to_device(batch, self._device)
        with torch.cuda.stream(self._stream):
            moved = to_device(batch, self._device)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for leaf in leaves(moved):
            if isinstance(leaf, Tensor):
                # A later copy must not reuse this memory before the compute stream is done with it.
                leaf.record_stream(current)
        return moved


def make_transfer(device: torch.device) -> Callable[[Any], Any]:
    return StreamTransfer(device) if device.type == "cuda" else partial(to_device, device=device)
