"""Buffers of a module that a forward pass makes, enlarges or expands."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn


def describe_buffers(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return the shape and dtype of each buffer by name."""
    return {name: (tuple(buffer.shape), buffer.dtype) for name, buffer in module.named_buffers()}


def copy_expanded_buffers(module: nn.Module) -> None:
    """Replace buffers whose elements share memory, as after `expand`, by copies that can be written
    in place. A buffer with several names stays one.

    Moving a module to a GPU does the same.
    """
    copies: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            if _has_shared_elements(buffer):
                copy = copies.setdefault(buffer, buffer.contiguous())
                setattr(part, name, copy)


def _has_shared_elements(buffer: Tensor) -> bool:
    if buffer.layout is not torch.strided:
        return False
    dimensions = zip(buffer.stride(), buffer.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in dimensions)


@torch.no_grad()
def restore_buffers(
    module: nn.Module,
    saved: Mapping[str, Tensor],
    remade: Collection[str],
    persistent: Collection[str],
) -> None:
    """Restore buffers by name, and register those that were `remade`: made, or changed in shape, by
    a forward pass.

    `persistent` names the buffers that a state dict holds. The module keeps its own buffer where
    the shape differs for another reason, such as a changed argument, and ignores names that it does
    not have.
    """
    parts = dict(module.named_modules())
    buffers = dict(module.named_buffers())
    tensors = [*module.parameters(), *buffers.values()]
    own_device = tensors[0].device if tensors else torch.device("cpu")
    for name, value in saved.items():
        path, _, attribute = name.rpartition(".")
        if name in remade and path in parts:
            device = buffers[name].device if name in buffers else own_device
            copy = value.to(device, copy=True).contiguous()
            # Without effect if the attribute is no buffer any more.
            with suppress(KeyError):
                parts[path].register_buffer(attribute, copy, persistent=name in persistent)
        elif name in buffers and buffers[name].shape == value.shape:
            buffers[name].copy_(value)
