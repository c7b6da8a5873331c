"""The transfer of batches to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """Moves the tensors of a batch, however it is nested: containers and dataclasses keep their type.

    What has a `to` of its own (a PackedSequence, a graph, a batch of a task's own) is moved by that, and so may leave a
    part where it is.
    """
    return with_leaves(batch, partial(_moved, device=device))


def with_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """A batch with other leaves; itself where each is what it was."""
    parts = held(batch)
    if parts is None:
        return change(batch)
    changed = [with_leaves(part, change) for part in parts]
    return batch if all(new is old for new, old in zip(changed, parts, strict=True)) else holding(batch, changed)


def _moved(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.to(device, non_blocking=True)
    return leaf.to(device) if moves_itself(leaf) else leaf


def moves_itself(part: Any) -> bool:
    """Whether a part of a batch has a `to` of its own, as a tensor has."""
    return callable(getattr(part, "to", None))


def held(batch: Any) -> list[Any] | None:
    """What a container holds; None of what is none, or moves itself."""
    if moves_itself(batch):
        return None
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return list(batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name) for field in fields(batch)]
    return None


def holding(batch: Any, parts: list[Any]) -> Any:
    """A container of the same type that holds other parts."""
    if isinstance(batch, Mapping):
        mapping = copy(batch) if isinstance(batch, MutableMapping) else dict(batch)
        for key, part in zip(batch, parts, strict=True):
            mapping[key] = part
        return mapping
    if isinstance(batch, Sequence):
        kind: Any = type(batch)
        return kind(*parts) if hasattr(batch, "_fields") else kind(parts)
    other = copy(batch)
    for field, part in zip(fields(batch), parts, strict=True):
        object.__setattr__(other, field.name, part)  # frozen ones too
    return other


def leaves(batch: Any) -> Iterator[Any]:
    """What a batch holds at last: tensors, what moves itself, and the rest."""
    parts = held(batch)
    if parts is None:
        yield batch
        return
    for part in parts:
        yield from leaves(part)


class Copies:
    """Moves batches to a GPU on a stream of its own, while the GPU still works on the batch before. Worker process.

    On the stream of that work a copy would wait for its end. What uses a batch waits for its copy, on the GPU; the host
    waits for neither, if the batch lies in page-locked memory. A batch with a part that moves itself is copied on the
    stream of the work: which memory its copy takes is not known, so none of it can be kept from a later copy.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def __call__(self, batch: Any) -> Any:
        if any(moves_itself(leaf) and not isinstance(leaf, Tensor) for leaf in leaves(batch)):
            return to_device(batch, self._device)
        with torch.cuda.stream(self._stream):
            moved = to_device(batch, self._device)
        present = torch.cuda.current_stream(self._device)
        present.wait_stream(self._stream)
        for leaf in leaves(moved):
            if isinstance(leaf, Tensor):
                # Their memory is not to be given to a later copy before this stream is done with it.
                leaf.record_stream(present)
        return moved


def mover(device: torch.device) -> Callable[[Any], Any]:
    """What moves batches to a device."""
    return Copies(device) if device.type == "cuda" else partial(to_device, device=device)
