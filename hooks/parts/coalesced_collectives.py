"""Collectives over many tensors at once: one call for each dtype and device, and none where a process trains alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def average(tensors: Iterable[Tensor]) -> None:
    """Replaces floating-point tensors by their mean over all ranks, in place. Every rank must call it alike."""

    def mean(flat: Tensor) -> None:
        dist.all_reduce(flat.div_(dist.get_world_size()))  # divided first, so that a sum of halves cannot overflow

    _in_one_call(tensors, mean)


@torch.no_grad()
def total(tensors: Iterable[Tensor]) -> None:
    """Replaces tensors by their sum over all ranks, in place. Every rank must call it alike."""
    _in_one_call(tensors, dist.all_reduce)


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor]) -> None:
    """Replaces tensors by those of rank 0, in place. Every rank must call it alike."""

    def from_master(flat: Tensor) -> None:
        dist.broadcast(flat, src=0)

    _in_one_call(tensors, from_master)


def _in_one_call(tensors: Iterable[Tensor], collective: Callable[[Tensor], None]) -> None:
    if not dist.is_initialized():
        return
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        alike[tensor.dtype, tensor.device].append(tensor)
    for group in alike.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        if flat.device.type == "cpu" and dist.get_backend() == "nccl":
            flat = flat.cuda()  # NCCL has no way between the memories of hosts
        collective(flat)
        for tensor, piece in zip(group, torch.split(flat, [tensor.numel() for tensor in group]), strict=True):
            tensor.copy_(piece.view_as(tensor))
