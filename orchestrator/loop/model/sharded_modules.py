"""Modules whose parameters are sharded across ranks, and a rank's shards of their saved weights.
Runs in workers."""

from copy import copy
from typing import Any

from torch import nn

from hooks.distributed import sharded_tensors as shards


def is_sharded(module: nn.Module) -> bool:
    """Return whether the module is sharded across ranks, so all of them must take part in each
    call."""
    return any(shards.is_sharded(parameter) for parameter in module.parameters())


def get_mesh(module: nn.Module) -> Any:
    """Return the device mesh over which a module is sharded; None if it is not sharded."""
    parameter: Any = next(filter(shards.is_sharded, module.parameters()), None)
    return None if parameter is None else parameter.device_mesh


def shard_model_state(saved: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return a module's saved state dict with this rank's shards, if the module is sharded."""
    if not is_sharded(module):
        return saved
    present = module.state_dict()
    own_shards = copy(saved)  # keeps the metadata that torch stores as an attribute
    for name, value in saved.items():
        if name in present:
            own_shards[name] = shards.shard_like(value, present[name])
    return own_shards
