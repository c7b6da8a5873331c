"""Collectives over many tensors: one call for each dtype and device, none on a single rank."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def average(tensors: Iterable[Tensor]) -> None:
    """Replace floating-point tensors by their mean across all ranks, in place. Collective."""

    def mean(flat: Tensor) -> None:
        dist.all_reduce(flat.div_(dist.get_world_size()))  # divides first, so that fp16 cannot overflow

    _run_coalesced(tensors, mean)


@torch.no_grad()
def total(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their sum across all ranks, in place. Collective."""
    _run_coalesced(tensors, dist.all_reduce)


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by those of rank 0, in place. Collective."""
    _run_coalesced(tensors, partial(dist.broadcast, src=0))


def _run_coalesced(tensors: Iterable[Tensor], collective: Callable[[Tensor], object]) -> None:
    if not dist.is_initialized():
        return
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.dtype, tensor.device].append(tensor)
    for group in groups.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        if flat.device.type == "cpu" and dist.get_backend() == "nccl":
            flat = flat.cuda()  # NCCL cannot send host memory
        collective(flat)
        for tensor, piece in zip(group, torch.split(flat, [tensor.numel() for tensor in group]), strict=True):
            tensor.copy_(piece.view_as(tensor))
