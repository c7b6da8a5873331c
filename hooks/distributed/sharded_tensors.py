"""Tensors of which each rank holds a shard: DTensors, from `strategy: fsdp`."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hooks.private_torch import foreach_norm


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is split across ranks."""
    # Importing DTensor takes a second, so look for its method instead.
    return hasattr(tensor, "to_local")


@torch.no_grad()
def get_local(tensor: Tensor) -> Tensor:
    """Return this rank's shard, in the same memory, or the tensor itself if it is not sharded."""
    part: Any = tensor
    return part.to_local() if is_sharded(tensor) else tensor


def shard_like(value: Tensor, reference: Tensor) -> Tensor:
    """Shard a full tensor like the reference, without communication; return a sharded tensor
    unchanged."""
    if not is_sharded(reference) or is_sharded(value):
        return value
    from torch.distributed.tensor import DTensor, Replicate

    placed: Any = reference
    replicated = DTensor.from_local(
        value.to(reference.device), placed.device_mesh, [Replicate()], run_check=False
    )
    return replicated.redistribute(placements=placed.placements)


def join_shards(part: Tensor, reference: Tensor) -> Tensor:
    """Join the ranks' shards to a DTensor like the reference; return `part` itself if the reference
    is not sharded."""
    if not is_sharded(reference):
        return part
    from torch.distributed.tensor import DTensor

    placed: Any = reference
    return DTensor.from_local(
        part,
        placed.device_mesh,
        placed.placements,
        run_check=False,
        shape=reference.shape,
        stride=reference.stride(),
    )


def compute_norm(parts: Sequence[Tensor], norm_type: float, device: torch.device) -> Tensor:
    """Return the p-norm of sharded tensors, from this rank's parts of them; collective.

    As in torch's `clip_grad_norm_`, the norm of each tensor comes first, and then the norm of these
    norms. Torch sends a message for each tensor, and this function one for all.
    """
    if not parts:
        return torch.tensor(0.0, device=device)
    # An empty part has no largest element.
    filled = [part if part.numel() else part.new_zeros(1) for part in parts]
    vector = torch.stack(foreach_norm(filled, norm_type)).to(device)
    if math.isinf(norm_type):
        # A maximum may ignore the NaN of some ranks.
        message = torch.stack([vector.nan_to_num(0.0, math.inf), vector.isnan().to(vector)])
        dist.all_reduce(message, op=dist.ReduceOp.MAX)
        vector = message[0].masked_fill(message[1] > 0, math.nan)
    else:
        vector = vector**norm_type
        dist.all_reduce(vector)
        vector = vector ** (1 / norm_type)
    total: Tensor = torch.linalg.vector_norm(vector, norm_type)
    return total
