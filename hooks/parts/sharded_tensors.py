"""Tensors of which each rank has a part: DTensors, as `strategy: fsdp` makes them of parameters and gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether ranks have parts of a tensor."""
    # To import DTensor takes a second; where there is one, it has been.
    return hasattr(tensor, "to_local")


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, in the same memory; the tensor itself where it is whole."""
    part: Any = tensor
    return part.to_local() if is_sharded(tensor) else tensor


def like(value: Tensor, reference: Tensor) -> Tensor:
    """A tensor that is whole on every rank, sharded as the reference is; as it came where that is whole or it is
    sharded already. No communication."""
    if not is_sharded(reference) or is_sharded(value):
        return value
    from torch.distributed.tensor import DTensor, Replicate

    placed: Any = reference
    whole = DTensor.from_local(value.to(reference.device), placed.device_mesh, [Replicate()], run_check=False)
    return whole.redistribute(placements=placed.placements)


def of_parts(part: Tensor, reference: Tensor) -> Tensor:
    """The tensor that ranks have parts of, each its `part`, as of the reference; the part itself where that is
    whole."""
    if not is_sharded(reference):
        return part
    from torch.distributed.tensor import DTensor

    placed: Any = reference
    return DTensor.from_local(
        part, placed.device_mesh, placed.placements, run_check=False, shape=reference.shape, stride=reference.stride()
    )


def norm_of_parts(norm: Tensor, norm_type: float) -> Tensor:
    """The p-norm of a vector from each rank's norm of its part; collective."""
    if math.isinf(norm_type):
        largest = norm.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest
    powers = norm.double() ** norm_type
    dist.all_reduce(powers)
    return (powers ** (1 / norm_type)).to(norm.dtype)
