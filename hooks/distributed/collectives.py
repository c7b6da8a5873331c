"""Collectives over many tensors, with one call for each dtype and device."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def average(tensors: Iterable[Tensor]) -> None:
    """Replace floating-point tensors by their mean across all ranks, in place. Collective."""

    def reduce_to_mean(flat: Tensor) -> None:
        # Divide first, so that fp16 cannot overflow.
        dist.all_reduce(flat.div_(dist.get_world_size()))

    _run_coalesced(tensors, reduce_to_mean)


@torch.no_grad()
def average_in_fp64(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their mean across all ranks, as `average` does, but rounded once, so that
    equal ones stay as they are. Collective."""

    def reduce_to_mean(flat: Tensor) -> None:
        wide = flat.to(torch.promote_types(flat.dtype, torch.float64))
        dist.all_reduce(wide)
        flat.copy_(wide / dist.get_world_size())

    _run_coalesced(tensors, reduce_to_mean)


@torch.no_grad()
def sum_across_ranks(tensors: Iterable[Tensor], world_size: int) -> None:
    """Replace tensors by their sum across all ranks of a run, in place. Collective.

    Has no effect in a run of one rank, whose process may belong to a group of others.
    """
    if world_size > 1:
        _run_coalesced(tensors, dist.all_reduce)


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by those of rank 0, in place. Collective."""
    _run_coalesced(tensors, partial(dist.broadcast, src=0))


def select_equal(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors that all ranks have under the same name, with equal shapes and dtypes.
    Collective.

    They are in the same order on all ranks, so that these can exchange them.
    """
    if not dist.is_initialized():
        return [*tensors.values()]
    own = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    selected = []
    for name in sorted(own):
        if all(other.get(name) == own[name] for other in ranks):
            selected.append(tensors[name])
    return selected


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
        pieces = torch.split(flat, [tensor.numel() for tensor in group])
        for tensor, piece in zip(group, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))
