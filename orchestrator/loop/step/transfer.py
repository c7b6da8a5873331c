"""The transfer of batches to the device. Used in workers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from orchestrator.loop.step.batch_parts import container_with, items_in, leaves, moves_itself


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
